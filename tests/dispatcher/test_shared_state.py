"""Several dispatchers on one real PostgreSQL: leases, taking over, fencing, passing on, one rate; and its restarts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.database import LeaseLost, StoreTrouble
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.rollout import fresh_batch
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.shared_store import SharedStore, open_shared_store
from rollway_dispatcher.step import Arrived, CancelBatch, Happened, Heard, Stopped
from rollway_wire.batch import BatchState, Group, Webhook
from tests.dispatcher.harness import agent_pids, calling, runs, serving
from tests.dispatcher.test_restart import start
from tests.dispatcher.test_schedule import Desk, order
from tests.kit.deadlines import eventually
from tests.kit.postgres_server import PostgresServer
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.parametrize("state", ["postgres"], indirect=True)


@asynccontextmanager
async def stores(state: dict[str, Any], count: int, lease_s: float = 60.0) -> AsyncIterator[list[SharedStore]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_shared_store(state["database_url"], lease_s)) for _ in range(count)]


async def arrived(store: SharedStore, webhook: Webhook | None = None) -> Desk:
    """A batch of two in ``store``, and the scheduler that works on it; its first step is written."""
    groups = [Group(group_id="g", payload={"a": 1}, n=2)]
    batch = fresh_batch(order("b1"), groups, 100.0)
    made = await store.create_batch(batch, groups, key="k", fingerprint="f", webhook=webhook)
    assert made == ("b1", True)
    desk = Desk()
    await store.commit(desk.step(Arrived(batch)))
    return desk


async def expire(store: SharedStore) -> None:
    """As if its dispatcher had been silent for a lease's length."""
    await store.release()


async def test_a_lease_that_is_held_is_left_alone_and_one_that_is_over_is_taken_once(state: dict[str, Any]) -> None:
    async with stores(state, 3) as (a, b, c):
        await arrived(a)
        assert await b.unfinished() == []
        await expire(a)
        taken = await asyncio.gather(b.unfinished(), c.unfinished())
        assert sorted(len(found) for found in taken) == [0, 1]
        ((batch, stops),) = next(found for found in taken if found)
        assert (batch.batch_id, len(batch.rollouts), stops) == ("b1", 2, [])


async def test_a_batch_of_ones_own_that_one_does_not_know_is_found(state: dict[str, Any]) -> None:
    """It was made or taken over, and the answer, or the reading of it, was lost."""
    async with stores(state, 2) as (a, b):
        await arrived(a)
        assert await b.unfinished() == [], "another's"
        assert await a.unfinished({"b1"}) == [], "at work on it"
        ((batch, _),) = await a.unfinished()
        assert batch.batch_id == "b1"


@pytest.mark.parametrize("one_address", [False, True])
async def test_silence_counts_after_a_change_of_hands_where_pushes_find_the_way(
    state: dict[str, Any], one_address: bool
) -> None:
    async with open_shared_store(state["database_url"], 60.0) as store:
        desk = await arrived(store)
        sessions = list(desk.core.sessions)
        await store.commit(desk.step(*[Happened(s, Trigger.INVOKED) for s in sessions], *map(Heard, sessions)))
    async with open_shared_store(state["database_url"], 60.0, one_address=one_address) as other:
        ((batch, _),) = await other.unfinished()
    assert [r.reports for r in batch.rollouts.values()] == [one_address] * 2


async def test_a_batch_whose_making_was_not_heard_of_is_worked_on(
    settings: DispatcherSettings, batch: Make, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_it = SharedStore.create_batch
    lost = [StoreTrouble("the connection broke at the end")]

    async def create_batch(self: SharedStore, *args: Any, **named: Any) -> tuple[str, bool]:
        made = await made_it(self, *args, **named)
        if lost:
            raise lost.pop()
        return made

    monkeypatch.setattr(SharedStore, "create_batch", create_batch)
    async with serving(settings) as api:
        body = batch([{"reward": 1}], n=2)
        answer = await api.http.post("/v1/batches", json=body, headers={"idempotency-key": "k"})
        assert answer.status_code == 503
        results = await api.results((await api.submit(body, key="k"))["batch_id"])
    assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 2
    assert list(runs(runs_dir).values()) == [1] * 2


async def test_a_server_that_goes_away_at_the_start_is_waited_for(
    settings: DispatcherSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SharedStore.unfinished
    away = [StoreTrouble("away")]

    async def unfinished(self: SharedStore, *known: Any) -> Any:
        if away:
            raise away.pop()
        return await read(self, *known)

    monkeypatch.setattr(SharedStore, "unfinished", unfinished)
    async with serving(settings) as api:

        async def healthy() -> bool:
            return (await api.http.get("/health")).status_code == 200 and not away

        await eventually(healthy, "it serves when the server is back", 120)


async def test_a_dispatcher_that_was_overtaken_writes_nothing_of_the_batch(state: dict[str, Any]) -> None:
    async with stores(state, 2) as (a, b):
        desk = await arrived(a)
        await expire(a)
        ((batch, _),) = await b.unfinished()
        step = desk.step(CancelBatch("b1", "late"))
        assert step.published
        with pytest.raises(LeaseLost) as lost:
            await a.commit(step)
        assert lost.value.batch_ids == {"b1"}
        assert (await b.status("b1")).counts == {"starting": 2}
        left = step.without(lost.value.batch_ids)
        assert not left.writes
        assert not left.effects
        assert desk.core.drop("b1")
        assert not desk.core.batches
        assert not desk.core.sessions
        other = Desk()
        other.core.adopt(batch, [], other.now)
        await b.commit(other.step(*[Happened(s, Trigger.INVOKED) for s in list(other.core.sessions)]))
        assert (await a.status("b1")).counts == {"running": 2}


async def test_a_webhook_goes_with_its_batchs_lease_even_when_nothing_else_is_left(state: dict[str, Any]) -> None:
    async with stores(state, 2) as (a, b):
        desk = await arrived(a, Webhook(url="http://127.0.0.1/"))
        cancelled = desk.step(CancelBatch("b1", "enough"))
        await a.commit(cancelled)
        await a.commit(desk.step(*[Stopped(s.session_id) for s in cancelled.stops_opened]))
        assert (await a.status("b1")).state is BatchState.FINISHED
        row = await a.own_webhook("b1")
        assert row is not None
        assert (await a.open_webhooks(), await b.open_webhooks()) == (["b1"], [])
        await a.keep()
        assert await b.unfinished() == []
        assert await b.own_webhook("b1") is None
        await expire(a)
        assert await b.unfinished() == [], "there is nothing to schedule"
        assert (await a.open_webhooks(), await b.open_webhooks()) == ([], ["b1"])
        assert await a.own_webhook("b1") is None
        with pytest.raises(LeaseLost):
            await a.set_webhook(replace(row, state="given_up"))
        assert await b.own_webhook("b1") == row
        await b.set_webhook(replace(row, state="done"))
        await expire(b)
        await a.unfinished()
        assert (await a.open_webhooks(), await b.open_webhooks()) == ([], [])
        assert await b.own_webhook("b1") is not None, "a finished batch is nobody's to take"
        assert await b.purge(1e12) == 1
        assert await b.own_webhook("b1") is None


async def test_a_step_whose_answer_was_lost_is_written_once(state: dict[str, Any]) -> None:
    async with stores(state, 1) as (store,):
        desk = await arrived(store)
        step = desk.step(CancelBatch("b1", "enough"))
        await store.commit(step)
        await store.commit(step)  # as the engine repeats it when the connection broke at the end
        found, there, total = await store.results("b1", 0, 10, 10**6)
        assert (len(found), there, total) == (2, 2, 2)


async def test_a_dispatcher_starts_while_others_write(state: dict[str, Any]) -> None:
    """Its start takes no lock that a write of theirs holds, or two of them would wait for one another."""
    async with stores(state, 1) as (a,):
        await arrived(a)
        async with a._db.writing() as db:
            for table in ("batches", "rollouts", "stops", "leases"):
                await db.execute(f"DELETE FROM {table} WHERE batch_id = 'none'")
            async with asyncio.timeout(100), stores(state, 1) as (b,):
                assert (await b.status("b1")).counts == {"starting": 2}


async def test_the_same_idempotency_key_at_two_dispatchers_is_one_batch(state: dict[str, Any]) -> None:
    async with stores(state, 2) as both:
        groups = [Group(group_id="g", payload={}, n=1)]

        async def submit(store: SharedStore, batch_id: str) -> tuple[str, bool]:
            batch = fresh_batch(order(batch_id), groups, 100.0)
            return await store.create_batch(batch, groups, key="same", fingerprint="f")

        made = await asyncio.gather(submit(both[0], "b1"), submit(both[1], "b2"))
        assert sorted(created for _, created in made) == [False, True]
        assert len({batch_id for batch_id, _ in made}) == 1


async def test_calls_of_all_dispatchers_are_spaced_by_one_rate(state: dict[str, Any]) -> None:
    async with stores(state, 2) as (a, b):
        began = asyncio.get_running_loop().time()
        waits = [await store.slot("arn", 0.1) for store in (a, b, a, b, a)]
        taken_s = asyncio.get_running_loop().time() - began
    gaps = [later - earlier for earlier, later in itertools.pairwise(waits)]
    assert waits[0] == 0.0
    assert all(gap <= 10 for gap in gaps)
    assert waits[-1] > 4 * 10 - taken_s - 0.1, "five calls, one in ten seconds, less what taking the slots took"


async def test_when_one_of_two_is_killed_the_other_finishes_its_batch_and_nothing_runs_twice(
    services: Services, taking_over: DispatcherSettings, batch: Make, runs_dir: Path, tmp_path: Path, state_path: Path
) -> None:
    """Also when the other has begun with agents of its own before: these it finds later are not the ones it knows."""
    gate = tmp_path / "go"
    first, second = await start(services, taking_over), await start(services, taking_over)
    async with calling(second.url) as api:
        (own,) = await api.results((await api.submit(batch([{"reward": 1}])))["batch_id"])
        assert own["rollout"]["state"] == "succeeded"
    async with calling(first.url) as api:
        payloads = [{"reward": i, "wait_for": str(gate), "reports": i % 2 == 0} for i in range(3)]
        made = await api.submit(batch(payloads, n=2, limits={"max_attempts": 1}))
        await api.until_state(made["batch_id"], "running", 6)
    first.kill()
    await eventually(lambda: "batch_taken_over" in second.logs(), "the other takes over", 60)
    await asyncio.to_thread(gate.touch)
    async with calling(second.url) as api:
        results = await api.results(made["batch_id"])
        assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 6
        assert len({r["rollout"]["rollout_id"] for r in results}) == 6
        assert list(runs(runs_dir).values()) == [1] * 7

        async def none_left() -> bool:
            return (await api.http.get("/v1/sessions")).json() == []

        await eventually(none_left, "every session is stopped", 120)
    assert not agent_pids(state_path), "and there is none left of what it said was stopped"


async def test_a_batch_is_followed_and_cancelled_through_the_other_dispatcher(
    services: Services, apart: DispatcherSettings, batch: Make
) -> None:
    first, second = await start(services, apart), await start(services, apart)
    async with calling(first.url) as mine, calling(second.url) as theirs:
        made = await mine.submit(batch([{"reward": 1}, {"act": "hang"}]))
        async with asyncio.timeout(200):
            while not (page := await theirs.page(made["batch_id"], wait_s=30))["results"]:
                pass
        assert [r["rollout"]["state"] for r in page["results"]] == ["succeeded"]
        await mine.until_state(made["batch_id"], "running", 1)
        await theirs.cancel(made["batch_id"])
        results = await mine.results(made["batch_id"])
    assert sorted(r["rollout"]["state"] for r in results) == ["cancelled", "succeeded"]


async def test_while_the_server_is_away_nothing_moves_and_health_says_so_and_then_it_goes_on(
    settings: DispatcherSettings, batch: Make, tmp_path: Path, postgres: PostgresServer, runs_dir: Path
) -> None:
    gate = tmp_path / "go"
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1, "wait_for": str(gate), "reports": True}], n=2))
        await api.until_state(made["batch_id"], "running", 2)
        await asyncio.to_thread(postgres.stop)
        try:
            await asyncio.to_thread(gate.touch)

            async def unhealthy() -> bool:
                answer = await api.http.get("/health")
                return answer.status_code == 503 and "PostgreSQL" in answer.json()["detail"]

            await eventually(unhealthy, "health tells that the server is away", 120)
            refused = await api.http.get(f"/v1/batches/{made['batch_id']}")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), "a client comes back for it"
        finally:
            await asyncio.to_thread(postgres.start)
        results = await api.results(made["batch_id"])
    assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 2
    assert list(runs(runs_dir).values()) == [1] * 2


async def test_a_server_that_is_not_there_is_refused_at_the_start(services: Services, state: dict[str, Any]) -> None:
    env = {"ROLLWAY_DISPATCHER_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x"}
    service = services.spawn("dispatcher", ["-m", "rollway_dispatcher"], env=env)
    assert await asyncio.to_thread(service.wait) == 2
    assert "DATABASE_URL" in service.logs()
    assert "hunter2" not in service.logs()


async def test_reading_while_the_server_is_away_is_trouble_and_not_a_crash(
    state: dict[str, Any], postgres: PostgresServer
) -> None:
    async with stores(state, 1) as (store,):
        await arrived(store)
        await asyncio.to_thread(postgres.stop)
        try:
            with pytest.raises(StoreTrouble):
                await store.status("b1")
        finally:
            await asyncio.to_thread(postgres.start)
        assert (await store.status("b1")).counts == {"starting": 2}
