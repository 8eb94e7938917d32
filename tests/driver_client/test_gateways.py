"""A pool's sessions are spread over several gateways: what the trainer says of the pool reaches all, or is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rollway_dispatcher.gateway import open_gateway
from rollway_driver.client import AsyncGateways, RetryPolicy
from rollway_driver.client.gateways import split_urls
from rollway_driver.verl.pool_gate import PoolGate
from rollway_wire.gateway import SessionSpec, WorkerSpec
from rollway_wire.ids import new_session_id
from rollway_wire.problems import NotFound, Unauthorized, Unavailable
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.deadlines import eventually
from tests.kit.ports import HeldPort
from tests.kit.scripted_engine import Reply, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
KEY = "the admin key of both gateways"
AT_ONCE = RetryPolicy(deadline_s=0)


@pytest.fixture
async def two() -> AsyncIterator[list[RunningGateway]]:
    async with running_gateway(admin_key=KEY) as one, running_gateway(admin_key=KEY) as other:
        yield [one, other]


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as running:
        yield running


def _trainer(two: list[RunningGateway], **more: Any) -> AsyncGateways:
    return AsyncGateways([gateway.url for gateway in two], **{"api_key": KEY, "retry": AT_ONCE, **more})


def _gates(two: list[RunningGateway], pool: str) -> list[tuple[str, int | None]]:
    found = [gateway.inside.pools[pool] for gateway in two]
    return [(pool.gate, pool.policy_version) for pool in found]


async def _call(gateways: list[RunningGateway], base_url: str) -> int:
    """Any gateway's client can call any URL."""
    return (await gateways[0].http.post(base_url + "/chat/completions", json={"messages": HI})).status_code


async def test_a_step_with_two_gateways(two: list[RunningGateway], engine: ScriptedEngine) -> None:
    """Registered, opened, fenced while a call is in flight at one, opened again: as one gateway would."""
    async with _trainer(two) as trainer, open_gateway([g.url for g in two], KEY) as dispatcher:
        first, second = await trainer.add_worker(WorkerSpec(url=engine.url), "train")
        assert first.worker_id == second.worker_id and first.healthy and second.healthy
        gate = PoolGate(trainer, "train", drain_timeout_s=60)
        await gate.enter(["g"], 4)
        assert _gates(two, "train") == [("open", 4)] * 2
        specs = [SessionSpec(session_id=new_session_id(), pool="train") for _ in range(24)]
        urls = [(await dispatcher.open_session(spec)).base_url for spec in specs]
        at_home = {url.partition("/sessions/")[0]: url for url in urls}
        assert set(at_home) == {g.url for g in two}, "sessions are at both"
        assert [await _call(two, url) for url in at_home.values()] == [200, 200]
        hold = asyncio.Event()
        engine.script(Reply("late", hold=hold))
        late = asyncio.create_task(_call(two, at_home[two[1].url]))
        await eventually(lambda: engine.on_hold, "a call in flight at the second")
        tagged = asyncio.Event()

        async def tag(last: bool) -> None:
            assert last
            tagged.set()

        leaving = asyncio.create_task(gate.leave("g", tag))
        await eventually(lambda: _gates(two, "train") == [("fenced", 4)] * 2, "both are fenced")
        assert not tagged.is_set(), "the weights must not change while a call is at the engine"
        hold.set()
        await leaving
        assert tagged.is_set() and await late == 200
        assert [await _call(two, url) for url in at_home.values()] == [503, 503]
        await trainer.pause_pool("train", hold=False, timeout_s=1)
        assert _gates(two, "train") == [("paused", 4)] * 2
        assert [s.policy_version for s in await trainer.open_pool("train", 5)] == [5, 5]
        assert [await _call(two, url) for url in at_home.values()] == [200, 200]
        drained = await trainer.drain_worker(first.worker_id, "train")
        assert [w.draining for w in drained] == [True, True]
        await trainer.remove_worker(first.worker_id, "train")
        assert [s.workers for s in await trainer.pool("train")] == [[], []]


async def test_one_that_does_not_do_it_is_named_and_it_may_be_said_again(engine: ScriptedEngine) -> None:
    async with AsyncExitStack() as stack:
        well = await stack.enter_async_context(running_gateway(admin_key=KEY))
        gone = stack.enter_context(HeldPort())
        async with AsyncGateways([well.url, gone.url], api_key=KEY, retry=AT_ONCE) as trainer:
            for ask in (
                lambda: trainer.add_worker(WorkerSpec(url=engine.url), "train"),
                lambda: trainer.open_pool("train", 3),
                lambda: trainer.fence_pool("train", drain_timeout_s=0),
                lambda: trainer.health(),
            ):
                with pytest.raises(Unavailable, match=f"1 of 2 gateways did not .*{gone.url}"):
                    await ask()
        pool = well.inside.pools["train"]
        assert (pool.gate, pool.policy_version, len(pool.workers)) == ("fenced", 3, 1), "the other did it"
        other = await stack.enter_async_context(running_gateway(admin_key=KEY))
        async with _trainer([well, other]) as trainer:
            await trainer.add_worker(WorkerSpec(url=engine.url), "train")
            await trainer.open_pool("train", 3)
            assert _gates([well, other], "train") == [("open", 3)] * 2
            assert [list(g.inside.pools["train"].workers) for g in (well, other)] == [list(pool.workers)] * 2


async def test_what_all_refuse_is_refused_in_their_own_words(two: list[RunningGateway]) -> None:
    async with _trainer(two) as trainer:
        with pytest.raises(NotFound, match="no pool 'none'"):
            await trainer.fence_pool("none")
    async with _trainer(two, api_key="another key") as stranger:
        with pytest.raises(Unauthorized):
            await stranger.open_pool("train")


async def test_cancelled_it_leaves_no_connection_and_may_be_repeated(
    two: list[RunningGateway], engine: ScriptedEngine
) -> None:
    async with _trainer(two) as trainer:
        await trainer.add_worker(WorkerSpec(url=engine.url), "default")
        hold = asyncio.Event()
        engine.script(Reply("late", hold=hold))
        late = asyncio.create_task(_call(two, two[0].url + "/sessions/s/v1"))
        await eventually(lambda: engine.on_hold, "a call in flight")
        fencing = asyncio.create_task(trainer.fence_pool(drain_timeout_s=60))
        await eventually(lambda: _gates(two, "default") == [("fenced", None)] * 2, "both are fenced")
        fencing.cancel()
        await asyncio.gather(fencing, return_exceptions=True)
        assert fencing.cancelled()
        hold.set()
        assert [s.in_flight for s in await trainer.fence_pool(drain_timeout_s=60)] == [0, 0]
        assert await late == 200


def test_gateways_are_named_with_commas_or_as_a_list() -> None:
    assert split_urls(" http://a:1/ ,http://b:2,,http://a:1") == ["http://a:1", "http://b:2"]
    assert split_urls(["http://a:1", "http://b:2/"]) == ["http://a:1", "http://b:2"]
    with pytest.raises(ValueError, match="names no gateway"):
        split_urls(" , ")
