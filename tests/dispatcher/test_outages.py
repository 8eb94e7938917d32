"""S3, the gateway or the disk gone for a while: nothing fails, nothing is lost, and it says what it waits for."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.database import StoreTrouble
from rollway_dispatcher.executor import Executor
from rollway_dispatcher.gateway import GatewayClient
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.store import Store
from rollway_wire.gateway import SessionSpec, SessionTicket
from tests.dispatcher.cuttable_proxy import CuttableProxy
from tests.dispatcher.harness import agent_pids, process_runtime, runs, serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket

Make = Callable[..., dict[str, Any]]


def touch(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT))


@pytest.mark.parametrize("reports", [False, True], ids=["without-push", "with-push"])
async def test_s3_unreachable_then_back_loses_no_result(
    settings: DispatcherSettings, batch: Make, s3: Bucket, runs_dir: Path, tmp_path: Path, reports: bool
) -> None:
    gate = tmp_path / "go"
    runtime = process_runtime(env={"AWS_ENDPOINT_URL_S3": s3.endpoint_url})
    async with (
        CuttableProxy(s3.endpoint_url) as proxy,
        serving(settings.model_copy(update={"s3_endpoint_url": proxy.url})) as api,
    ):
        payload = {"reward": 1, "wait_for": str(gate), "reports": reports}
        made = await api.submit(batch([payload] * 2, runtime=runtime))
        await api.until_state(made["batch_id"], "running", 2)
        await proxy.cut()
        touch(gate)
        await eventually(lambda: len(s3.keys(f"exp/{made['batch_id']}/")) == 2, "both agents saved their results", 120)
        refused = await api.http.post("/v1/batches", json=batch([payload]))
        assert refused.status_code == 503
        assert s3.name in refused.json()["detail"]
        assert (await api.page(made["batch_id"]))["results"] == []
        await proxy.join()
        results = await api.results(made["batch_id"])
    assert [(r["rollout"]["state"], r["rollout"]["attempt"]) for r in results] == [("succeeded", 1)] * 2
    assert list(runs(runs_dir).values()) == [1, 1]


async def test_the_gateway_gone_while_results_arrive_delays_them_only(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1, "linger_for": str(gate)}]))
        await eventually(lambda: gateway.calls, "the agent called the model", 120)
        await gateway.stop()
        touch(gate)
        await api.until_state(made["batch_id"], "collecting", 1)
        await gateway.start()
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["state"] == "succeeded"
    assert len(result["trajectory"]["turns"]) == 1


async def test_a_session_is_gone_only_when_its_gateway_session_is_sealed_too(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, state_path: Path
) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"act": "hang"}], n=2))
        await api.until_state(made["batch_id"], "running", 2)
        await gateway.stop()
        await api.cancel(made["batch_id"])
        await eventually(lambda: not agent_pids(state_path), "the agents are ended without waiting for the gateway")
        assert {s["state"] for s in (await api.http.get("/v1/sessions")).json()} == {"stopping"}
        await gateway.start()

        async def none_left() -> bool:
            return (await api.http.get("/v1/sessions")).json() == []

        await eventually(none_left, "the sessions are gone", 120)
        assert gateway.sealed == gateway.sessions.keys()


async def test_a_session_that_was_being_opened_when_its_batch_ended_is_sealed(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, runs_dir: Path
) -> None:
    gateway.gate.clear()
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}], n=2))
        await eventually(lambda: gateway.opening == 2, "both sessions are being opened")
        await api.cancel(made["batch_id"])
        await asyncio.sleep(0.3)  # a stop that does not wait would seal what is not there yet
        gateway.gate.set()

        async def none_left() -> bool:
            return (await api.http.get("/v1/sessions")).json() == []

        await eventually(none_left, "the sessions are gone", 120)
        assert gateway.sealed == gateway.sessions.keys() and len(gateway.sealed) == 2
    assert not gateway.unknown_sealed
    assert not runs(runs_dir)


async def test_a_session_whose_opening_arrives_after_its_stop_began_is_sealed(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what a killed dispatcher had sent: nobody of the living waits for it."""
    sent: list[asyncio.Task[Any]] = []

    async def unheard(self: Executor, client: GatewayClient, spec: SessionSpec) -> SessionTicket:
        sent.append(asyncio.create_task(client.open_session(spec)))
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Executor, "_opened", unheard)
    gateway.gate.clear()
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}]))
        await eventually(lambda: gateway.opening == 1, "the session is being opened")
        await api.cancel(made["batch_id"])
        await eventually(lambda: gateway.unknown_sealed, "the stop has begun", 120)
        gateway.gate.set()

        async def none_left() -> bool:
            return (await api.http.get("/v1/sessions")).json() == []

        await eventually(none_left, "the session is gone", 120)
        assert gateway.sealed == gateway.sessions.keys() and len(gateway.sealed) == 1
    await asyncio.gather(*sent)


async def test_a_start_waits_while_its_input_cannot_be_read(
    settings: DispatcherSettings, batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Store.payload
    troubles = [StoreTrouble("away"), StoreTrouble("still away")]

    async def payload(self: Store, batch_id: str, group: int) -> dict[str, Any]:
        if troubles:
            raise troubles.pop()
        return await answered(self, batch_id, group)

    monkeypatch.setattr(Store, "payload", payload)
    async with serving(settings) as api:
        (result,) = await api.results((await api.submit(batch([{"reward": 1}])))["batch_id"])
    assert (result["rollout"]["state"], result["rollout"]["attempt"]) == ("succeeded", 1)
    assert not troubles


async def test_a_result_that_cannot_be_collected_in_time_is_a_typed_failure(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    async with serving(settings.model_copy(update={"collect_timeout_s": 1.0})) as api:
        made = await api.submit(batch([{"reward": 1, "linger_for": str(gate)}]))
        await eventually(lambda: gateway.calls, "the agent called the model", 120)
        await gateway.stop()
        touch(gate)
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == "timed_out"
    assert "gateway" in result["rollout"]["failure"]["message"]
    assert result["rollout"]["rewards"] is None


async def test_while_the_state_cannot_be_written_nothing_is_done_and_health_says_so(
    settings: DispatcherSettings, batch: Make, state_path: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1, "wait_for": str(gate), "reports": True}]))
        await api.until_state(made["batch_id"], "running", 1)
        other = await asyncio.to_thread(sqlite3.connect, state_path, timeout=60, check_same_thread=False)
        await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
        touch(gate)

        async def unhealthy() -> bool:
            answer = await api.http.get("/health")
            return answer.status_code == 503 and "locked" in answer.json()["detail"]

        await eventually(unhealthy, "health tells of the locked state", 120)
        assert (await api.page(made["batch_id"]))["results"] == [], "not reported before it is written"
        await asyncio.to_thread(other.rollback)
        await asyncio.to_thread(other.close)
        (result,) = await api.results(made["batch_id"])
        assert result["rollout"]["state"] == "succeeded"
        assert (await api.http.get("/health")).status_code == 200
