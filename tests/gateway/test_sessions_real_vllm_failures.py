"""What goes wrong in a real agent's session costs no token twice: clients that leave, connections that break, weights
that change in mid-turn. The engine is a real vLLM server with a real model, and its own counter is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from rollway_gateway.session import Session
from rollway_wire.tokens import Trajectory
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.cutting_proxy import CuttingProxy
from tests.kit.deadlines import eventually
from tests.kit.engine_word import (
    LARGEST,
    generated,
    largest_difference,
    prompt_logprobs,
    running,
    turn_differences,
    worker_ledger,
)
from tests.kit.other_weights import write_other_weights
from tests.kit.sum_agents import Dialect, SumAgent, make_agent
from tests.kit.vllm_server import VllmServer, engine_client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

CHATS: tuple[Dialect, ...] = ("chat", "responses", "messages")
DIALECTS: tuple[Dialect, ...] = (*CHATS, "completions")
LONG = {"min_tokens": 60}


class Bench:
    """A gateway before the server, and what the engine samples from here on."""

    def __init__(self, gateway: RunningGateway, server: VllmServer, http: httpx.AsyncClient, before: int) -> None:
        self.gateway, self.server, self.http, self._before = gateway, server, http, before
        self.agents = AsyncExitStack()

    async def ledger(self) -> dict[str, Any]:
        """The worker's, which the engine's counter confirms."""
        await eventually(self._idle, "the engine is idle")
        ledger = await worker_ledger(self.gateway.http, self.server.url)
        assert ledger["engine"] == await generated(self.http, self.server.url) - self._before, ledger
        return ledger

    async def sampled(self) -> int:
        """By the engine's counter, all of it captured."""
        ledger = await self.ledger()
        assert (ledger["captured"], ledger["cut_off"]) == (ledger["engine"], 0), ledger
        return int(ledger["engine"])

    async def _idle(self) -> bool:
        return not await running(self.http, self.server.url)

    async def agent(
        self, dialect: Dialect, proxy: CuttingProxy | None = None, **options: Any
    ) -> tuple[SumAgent, Session]:
        ticket = await self.gateway.open()
        url = ticket["base_url"] if proxy is None else proxy.url + ticket["base_url"].removeprefix(self.gateway.url)
        made = make_agent(dialect, url, self.server.model_path, **options)
        self.agents.push_async_callback(made.close)
        return made, self.gateway.inside.store.get(ticket["session_id"])

    async def seal(self, session: Session) -> Trajectory:
        return await self.gateway.seal(session.session_id)

    async def confirmed(self, made: Trajectory) -> None:
        """One sequence, whose log-probs are the engine's own. Samples a token."""
        assert (made.incomplete, len(made.sequences)) == (None, 1), made.metadata
        (row,) = made.sequences
        theirs = await prompt_logprobs(self.http, self.server.url, self.server.model, row.token_ids.tolist())
        assert largest_difference(row, theirs) <= LARGEST


@asynccontextmanager
async def bench(server: VllmServer, **settings: Any) -> AsyncIterator[Bench]:
    async with running_gateway(mode="exact", **settings) as gateway, engine_client(300) as http:
        added = await gateway.http.post("/v1/pools/default/workers", json={"url": server.url}, timeout=120)
        assert added.json()["mode"] == "exact", added.text
        made = Bench(gateway, server, http, await generated(http, server.url))
        async with made.agents:
            yield made


def at_worker(session: Session) -> bool:
    return any(call.upstream is not None for call in session.calls)  # type: ignore[attr-defined]


async def unheard(session: Session) -> None:
    """Until the gateway knows that the client of the session's call has left."""
    (call,) = session.originals._all()[-1:]
    await eventually(lambda: call.answers_retry(said=False), "the gateway knows that the client left")


async def test_clients_that_leave_in_mid_stream_and_ask_again(smollm2_server: VllmServer) -> None:
    """The same bytes get the same answer: nothing is sampled a second time."""

    async def hold(on: Bench, dialect: Dialect) -> Trajectory:
        agent, session = await on.agent(dialect)
        await agent.turn(stream=True)
        agent.speak()
        agent.extra = LONG
        agent.max_tokens = 70
        await agent.leave()
        await unheard(session)
        agent.keep(await agent.ask(stream=True))
        agent.extra = {}
        await agent.turn(stream=False)
        return await on.seal(session)

    async with bench(smollm2_server, retry_grace_s=60) as on:
        held = await asyncio.gather(*(hold(on, dialect) for dialect in DIALECTS))
        assert sum(made.ledger.sampled for made in held) == await on.sampled()
        for made in held:
            assert (made.ledger.trained, made.metadata["rejoined_calls"]) == (made.ledger.sampled, 1)
            assert len(made.turns) == 3
            await on.confirmed(made)


async def test_clients_that_leave_for_good(smollm2_server: VllmServer) -> None:
    """Their generation ends, and every token the engine sampled for it is in the ledger, trained by nothing."""

    async def hold(on: Bench, dialect: Dialect, *, stream: bool) -> Trajectory:
        agent, session = await on.agent(dialect)
        await agent.turn(stream=stream)
        agent.speak()
        agent.extra, agent.max_tokens = {"min_tokens": 400}, 500
        if stream:
            await agent.leave()
        else:
            asking = asyncio.create_task(agent.ask(stream=False))
            await eventually(lambda: at_worker(session), "the call is at the worker")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: not session.calls, "the call has ended", within_s=60)
        return await on.seal(session)

    async with bench(smollm2_server, retry_grace_s=1) as on:
        kinds = [(dialect, stream) for dialect in DIALECTS for stream in (True, False)]
        held = await asyncio.gather(*(hold(on, dialect, stream=stream) for dialect, stream in kinds))
        ledger = await on.ledger()
        sampled = sum(made.ledger.sampled for made in held)
        print(f"{sampled} tokens told, {ledger['cut_off']} cut off, {ledger['engine']} sampled")
        assert sampled == ledger["captured"] == ledger["engine"] - ledger["cut_off"]
        for made, (_, stream) in zip(held, kinds, strict=True):
            assert [turn.incomplete for turn in made.turns] == [None, "client disconnected"]
            lost = len(made.turns[1].completion_token_ids)
            assert (made.ledger.lost, made.ledger.trained) == (lost, made.ledger.sampled - lost)
            assert (lost > 0) == stream  # of an answer that did not stream, nothing is told before its end
            await on.confirmed(made)


@pytest.mark.parametrize("says", [True, False])
async def test_sdks_that_ask_again_after_a_broken_connection(smollm2_server: VllmServer, says: bool) -> None:
    """With and without the header that says it is a retry: the call in flight is joined."""

    async def hold(on: Bench, dialect: Dialect) -> Trajectory:
        async with CuttingProxy(on.gateway.url) as proxy:
            omitted = (anthropic if dialect == "messages" else openai).Omit()
            headers = {} if says else {"x-stainless-retry-count": omitted}
            agent, session = await on.agent(dialect, proxy, max_retries=4, **headers)
            await agent.turn(stream=True)
            agent.speak()
            agent.extra, agent.max_tokens = LONG, 70
            asking = asyncio.create_task(agent.ask(stream=False))
            await eventually(lambda: at_worker(session) or asking.done(), "the call is at the worker")
            assert not asking.done(), asking
            proxy.cut()
            agent.keep(await asking)
            if says:  # an answer that is lost after the gateway sent it; without the header it is an ask of its own
                agent.extra, agent.max_tokens = {}, 40
                agent.speak()
                proxy.lose_answers = 1
                agent.keep(await agent.ask(stream=True))
            return await on.seal(session)

    async with bench(smollm2_server, retry_grace_s=60) as on:
        held = await asyncio.gather(*(hold(on, dialect) for dialect in DIALECTS))
        assert sum(made.ledger.sampled for made in held) == await on.sampled()
        for made in held:
            assert (made.ledger.trained, made.metadata["rejoined_calls"]) == (made.ledger.sampled, 1 + says)
            await on.confirmed(made)


@contextmanager
def other_weights(server: VllmServer, folder: Path) -> Iterator[Path]:
    """A checkpoint to load; the server has its own again afterwards."""
    write_other_weights(server.model_path, folder / "v2")
    try:
        yield folder / "v2"
    finally:
        httpx.post(f"{server.url}/pause", params={"mode": "abort"}, timeout=60).raise_for_status()
        _reload(server.url, server.model_path)
        httpx.post(f"{server.url}/resume", timeout=60).raise_for_status()


def _reload(url: str, folder: Path) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    httpx.post(f"{url}/collective_rpc", json=body, timeout=120).raise_for_status()


async def test_weights_that_change_in_mid_turn(smollm2_server: VllmServer, tmp_path: Path) -> None:
    """Pause, abort, load, open: every turn goes on whole under both versions, and each of its tokens has the log-prob
    of the weights that sampled it."""

    async def begin(on: Bench, dialect: Dialect) -> tuple[SumAgent, Session]:
        agent, session = await on.agent(dialect)
        await agent.turn(stream=True)
        agent.speak()
        agent.extra, agent.max_tokens = {"min_tokens": 80}, 90
        return agent, session

    async def end(agent: SumAgent, *, stream: bool) -> None:
        agent.keep(await agent.ask(stream=stream))
        agent.extra, agent.max_tokens = {}, 40
        await agent.turn(stream=stream)

    server = smollm2_server
    async with bench(server) as on:
        await _gate(on, "open", policy_version=1)
        kinds = [(dialect, stream) for dialect in CHATS for stream in (True, False)]
        begun = await asyncio.gather(*(begin(on, dialect) for dialect, _ in kinds))
        with other_weights(server, tmp_path) as folder:
            pairs = zip(begun, kinds, strict=True)
            going = [asyncio.create_task(end(agent, stream=stream)) for (agent, _), (_, stream) in pairs]
            await eventually(lambda: _busy(on, len(going)), "every turn is being sampled", within_s=60)
            await _gate(on, "pause", timeout_s=0)
            (await on.http.post(f"{server.url}/pause", params={"mode": "abort"})).raise_for_status()
            await eventually(lambda: _held(on, len(going)), "every call waits")
            await asyncio.to_thread(_reload, server.url, folder)
            (await on.http.post(f"{server.url}/resume")).raise_for_status()
            await _gate(on, "open", policy_version=2)
            await asyncio.gather(*going)
            held = [await on.seal(session) for _, session in begun]
            assert sum(made.ledger.trained for made in held) == await on.sampled()
            rows = [made.sequences[0].token_ids.tolist() for made in held]
            new = [await prompt_logprobs(on.http, server.url, server.model, ids) for ids in rows]
        old = [await prompt_logprobs(on.http, server.url, server.model, ids) for ids in rows]
        for made, by_new, by_old in zip(held, new, old, strict=True):
            _check_versions(made, by_new, by_old)


async def _gate(on: Bench, what: str, **said: Any) -> None:
    (await on.gateway.http.post(f"/v1/pools/default/{what}", json=said)).raise_for_status()


async def _busy(on: Bench, calls: int) -> bool:
    return await running(on.http, on.server.url) == calls


async def _held(on: Bench, calls: int) -> bool:
    return bool((await on.gateway.http.get("/v1/pools/default")).json()["held"] == calls)


def _check_versions(made: Trajectory, by_new: list[float], by_old: list[float]) -> None:
    assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1), made.metadata
    assert [(t.policy_version_start, t.policy_version_end) for t in made.turns] == [(1, 1), (1, 2), (2, 2)]
    before, during, after = made.turns
    assert max(turn_differences(before, by_old)) <= LARGEST
    assert max(turn_differences(after, by_new)) <= LARGEST
    old, new = turn_differences(during, by_old), turn_differences(during, by_new)
    cut = next(k for k, d in enumerate([*old, 1.0]) if d > LARGEST)
    print(f"{len(old)} tokens, cut at {cut}, |d| {max(old[:cut]):.1e} {max(new[cut:]):.1e}")
    assert 0 < cut < len(old)
    assert max(new[cut:]) <= LARGEST < max(new[:cut])
