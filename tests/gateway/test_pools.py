"""Workers: sticky, least loaded, watched; pools: fenced, drained, opened with a version; two pools never mix."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.under_way import answered, under_way
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def _ask(gateway: RunningGateway, ticket: dict[str, Any], **body: Any) -> httpx.Response:
    return await gateway.http.post(
        ticket["base_url"] + "/chat/completions", json={"model": "m", "messages": HI, **body}
    )


async def test_sessions_stick_to_a_worker_and_spread_over_workers(engine: ScriptedEngine) -> None:
    async with ScriptedEngine() as other, running_gateway() as gateway:
        await gateway.add(engine, other)
        for _ in range(4):
            ticket = await gateway.open()
            for _ in range(3):
                assert (await _ask(gateway, ticket)).status_code == 200
            workers = {t.worker for t in (await gateway.trajectory(ticket["session_id"])).turns}
            assert len(workers) == 1
        assert len(engine.requests) == len(other.requests) == 6


async def test_a_heavier_worker_takes_more_sessions(engine: ScriptedEngine) -> None:
    async with ScriptedEngine() as other, running_gateway() as gateway:
        await gateway.add(engine, weight=3)
        await gateway.add(other)
        for _ in range(8):
            await _ask(gateway, await gateway.open())
        assert (len(engine.requests), len(other.requests)) == (6, 2)


async def test_a_busy_worker_gets_no_new_session(engine: ScriptedEngine) -> None:
    hold = asyncio.Event()
    async with ScriptedEngine() as other, running_gateway() as gateway:
        await gateway.add(engine, other)
        engine.script(Reply(hold=hold))
        slow = asyncio.create_task(_ask(gateway, await gateway.open()))
        await eventually(lambda: engine.active, "a call in flight")
        for _ in range(3):
            await _ask(gateway, await gateway.open())
        assert (len(engine.requests), len(other.requests)) == (1, 3)
        hold.set()
        assert (await slow).status_code == 200


async def test_a_dead_worker_is_seen_and_a_returning_one_is_used_again(engine: ScriptedEngine) -> None:
    async with running_gateway(health_failures=2) as gateway:
        (worker,) = await gateway.add(engine)
        port = int(engine.url.rsplit(":", 1)[1])
        await engine.stop()

        async def health() -> bool:
            state = (await gateway.http.get("/v1/pools/default")).json()["workers"][0]
            return bool(state["healthy"])

        async def refuses() -> bool:
            state = (await gateway.http.get("/v1/pools/default")).json()["workers"][0]
            return not state["healthy"] and "ConnectorError" in state["detail"]

        await eventually(refuses, "the worker is seen dead, in the end for refusing connections")
        await engine.start(port)
        await eventually(health, "the worker is back")
        assert (await _ask(gateway, await gateway.open())).status_code == 200
        assert worker["model_name"] == engine.model


async def test_busy_is_not_dead(engine: ScriptedEngine) -> None:
    """Failed checks do not count while bytes of an answer flowed lately; without such bytes they do."""
    async with running_gateway(health_failures=1, alive_window_s=3600.0) as gateway:
        await gateway.add(engine)
        await _ask(gateway, await gateway.open())
        engine.healthy = False
        worker = gateway.inside.workers()[0]
        for _ in range(3):
            await gateway.inside.health.check(worker)
        assert worker.healthy
        worker.bytes_at -= 7200
        await gateway.inside.health.check(worker)
        assert not worker.healthy
        assert worker.detail == "ValueError: /health answered 503"


async def test_the_model_name_is_the_workers(engine: ScriptedEngine) -> None:
    """One served model replaces the agent's; among several the agent chooses; a given name always replaces."""
    async with running_gateway() as gateway:
        await gateway.add(engine)
        await _ask(gateway, await gateway.open(), model="gpt-x")
        engine.models = ["base", "adapter"]
        await gateway.add(engine, model_name="given")
        await _ask(gateway, await gateway.open(), model="adapter")
        await gateway.http.delete(f"/v1/pools/default/workers/{gateway.inside.workers()[0].worker_id}")
        await gateway.add(engine)
        await _ask(gateway, await gateway.open(), model="adapter")
        await _ask(gateway, await gateway.open(), model="unknown")
        assert [body["model"] for _, body in engine.requests] == [engine.model, "given", "adapter", "base"]


async def test_a_fence_refuses_new_calls_waits_for_old_ones_and_opens_with_a_version(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    hold = asyncio.Event()
    await gateway.http.post("/v1/pools/default/open", json={"policy_version": 3})
    ticket = await gateway.open()
    engine.script(Reply(hold=hold))
    slow = asyncio.create_task(_ask(gateway, ticket))
    await eventually(lambda: engine.active, "a call in flight")
    fencing = asyncio.create_task(gateway.http.post("/v1/pools/default/fence", json={"drain_timeout_s": 60}))

    async def gate() -> bool:
        return (await gateway.http.get("/v1/pools/default")).json()["gate"] == "fenced"

    await eventually(gate, "the fence is up")
    refused = await _ask(gateway, ticket)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "ServiceUnavailableError"
    assert not fencing.done()
    hold.set()
    assert (await slow).status_code == 200
    state = (await fencing).json()
    assert (state["gate"], state["in_flight"], state["policy_version"]) == ("fenced", 0, 3)
    await gateway.http.post("/v1/pools/default/open", json={"policy_version": 4})
    assert (await _ask(gateway, ticket)).status_code == 200
    made = await gateway.seal(ticket["session_id"])
    assert [(t.policy_version_start, t.policy_version_end) for t in made.turns] == [(3, 3), (4, 4)]
    assert made.sequences[0].policy_versions[-1] in (3, 4)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fence_aborts_what_does_not_drain(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    ticket = await gateway.open()
    engine.script(Reply("abc", hold=asyncio.Event()))
    slow = await under_way(gateway, engine, ticket, {"messages": HI, "stream": stream})
    state = (await gateway.http.post("/v1/pools/default/fence", json={"drain_timeout_s": 0.2})).json()
    assert (state["gate"], state["in_flight"]) == ("fenced", 0)
    answer = await slow
    assert answer.status_code == (200 if stream else 503)
    assert '"code":503' in answer.text
    (turn,) = (await gateway.trajectory(ticket["session_id"])).turns
    assert turn.incomplete == "the pool 'default' was fenced for a weight update"
    await eventually(lambda: engine.cancelled == 1, "the engine's generation is cancelled")


async def test_a_fence_may_leave_calls_running_and_opening_ends_its_wait(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    hold = asyncio.Event()
    ticket = await gateway.open()
    engine.script(Reply(hold=hold))
    slow = asyncio.create_task(_ask(gateway, ticket))
    await eventually(lambda: engine.active, "a call in flight")
    left = await gateway.http.post("/v1/pools/default/fence", json={"drain_timeout_s": 0, "abort": False})
    assert left.json()["in_flight"] == 1
    await gateway.http.post("/v1/pools/default/open", json={})
    fencing = asyncio.create_task(gateway.http.post("/v1/pools/default/fence", json={"drain_timeout_s": 3600}))
    await eventually(lambda: gateway.inside.pools["default"].gate == "fenced", "a fence that waits")
    assert not fencing.done()
    await gateway.http.post("/v1/pools/default/open", json={"policy_version": 1})
    assert (await fencing).json()["gate"] == "open"
    hold.set()
    assert (await slow).status_code == 200
    (turn,) = (await gateway.trajectory(ticket["session_id"])).turns
    assert (turn.policy_version_start, turn.policy_version_end) == (-1, 1), "weights changed in the middle"


async def test_a_fenced_call_succeeds_through_the_sdks_own_retries(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket = await gateway.open()
    await gateway.http.post("/v1/pools/default/fence", json={})
    async with answered() as (http, statuses), gateway.openai(ticket, max_retries=10, http_client=http) as client:
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HI))
        await eventually(lambda: 503 in statuses, "it was refused")
        await gateway.http.post("/v1/pools/default/open", json={})
        assert (await asking).choices[0].message.content == "ok"
    assert (set(statuses[:-1]), statuses[-1]) == ({503}, 200)


async def test_two_pools_do_not_mix(engine: ScriptedEngine) -> None:
    async with ScriptedEngine() as other, running_gateway() as gateway:
        await gateway.add(engine, pool="one")
        await gateway.add(other, pool="two")
        one, two = await gateway.open(pool="one"), await gateway.open(pool="two")
        await gateway.http.post("/v1/pools/one/open", json={"policy_version": 7})
        await gateway.http.post("/v1/pools/two/fence", json={"drain_timeout_s": 0})
        assert [(await _ask(gateway, t)).status_code for t in (one, two)] == [200, 503]
        assert (len(engine.requests), len(other.requests)) == (1, 0)
        pools = {p["pool"]: p for p in (await gateway.http.get("/v1/pools")).json()}
        assert pools.keys() == {"default", "one", "two"}
        assert (pools["one"]["sessions"], pools["one"]["policy_version"], pools["two"]["gate"]) == (1, 7, "fenced")


async def test_workers_of_a_pool_can_be_changed_and_removed(engine: ScriptedEngine) -> None:
    async with running_gateway() as gateway:
        first = await gateway.http.post("/v1/pools/p/workers", json={"url": engine.url + "/v1/"})
        again = await gateway.http.post("/v1/pools/p/workers", json={"url": engine.url, "weight": 5})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["worker_id"] == again.json()["worker_id"]
        assert (again.json()["weight"], again.json()["api_path"], again.json()["url"]) == (5, "/v1", engine.url)
        worker = f"/v1/pools/p/workers/{again.json()['worker_id']}"
        assert [(await gateway.http.delete(worker)).status_code for _ in range(2)] == [204, 404]
        other = {"url": "http://127.0.0.1:9", "worker_id": "w"}
        await gateway.http.post("/v1/pools/p/workers", json=other)
        taken = await gateway.http.post("/v1/pools/p/workers", json={**other, "url": engine.url})
        assert taken.status_code == 409


async def test_openai_clients_see_the_fence_as_a_retryable_status(gateway: RunningGateway) -> None:
    ticket = await gateway.open()
    await gateway.http.post("/v1/pools/default/fence", json={})
    async with gateway.openai(ticket) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model="m", messages=HI)
    assert refused.value.status_code == 503
