"""The agentcore runtime through the AWS SDK, against the emulator as a process; with the emulator's own faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiolimiter import AsyncLimiter

from rollway_dispatcher import state
from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import ARN, has_reported, runs, serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually
from tests.kit.services import Service

Make = Callable[..., dict[str, Any]]
StartEmulator = Callable[..., Awaitable[Service]]


def asking() -> httpx.AsyncClient:
    """A client of the emulator's own routes."""
    return httpx.AsyncClient(timeout=120, trust_env=False)


def refusals(service: Service) -> int:
    """How many calls the emulator has throttled."""
    return service.logs().count("ThrottlingException")


def runtime(service: Service, **more: Any) -> dict[str, Any]:
    return {"kind": "agentcore", "agent_runtime_arn": ARN, "endpoint_url": service.url, **more}


async def sessions(service: Service) -> list[str]:
    async with asking() as http:
        found = (await http.get(f"{service.url}/_emulator/sessions")).json()["sessions"]
    return [s["session_id"] for s in found]


async def test_rollouts_run_in_sessions_of_their_own_and_every_session_is_stopped(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator, runs_dir: Path, gateway: ScriptedGateway
) -> None:
    service = await emulator()
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}, {"reward": 2, "reports": True}], n=2, runtime=runtime(service)))
        results = await api.results(made["batch_id"])
        assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 4
        assert sorted(runs(runs_dir)) == sorted(r["rollout"]["session_id"] for r in results) == sorted(gateway.sessions)

        async def none_left() -> bool:
            return not await sessions(service)

        await eventually(none_left, "every session is stopped")


async def test_throttling_and_a_full_quota_delay_rollouts_but_fail_none(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator, runs_dir: Path
) -> None:
    service = await emulator({"chaos": {"seed": 3, "throttle": {"probability": 0.3}}}, max_sessions=3)
    async with serving(settings) as api:
        spec = runtime(service, tps_limit=20)
        made = await api.submit(batch([{"reward": 1}] * 8, runtime=spec, limits={"max_attempts": 1}))
        results = await api.results(made["batch_id"])
    assert [(r["rollout"]["state"], r["rollout"]["attempt"]) for r in results] == [("succeeded", 1)] * 8
    assert list(runs(runs_dir).values()) == [1] * 8


async def test_calls_stay_under_the_rate_that_invoke_and_stop_share(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of the limiter that lets them go: on their way the machine may hold some up, and they bunch."""
    passed: list[float] = []

    class Noted(AsyncLimiter):
        async def acquire(self, amount: float = 1) -> None:
            await super().acquire(amount)
            passed.append(self._last_check)

    monkeypatch.setattr(state, "own_pace", lambda arn, rate: Noted(1, 1 / rate))
    service = await emulator()
    async with serving(settings) as api:
        begin = asyncio.get_running_loop().time()
        made = await api.submit(batch([{"reward": 1}] * 6, runtime=runtime(service, tps_limit=3.6)))
        results = await api.results(made["batch_id"])
        assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 6

        async def none_left() -> bool:
            return not await sessions(service)

        await eventually(none_left, "every session is stopped")
        assert asyncio.get_running_loop().time() - begin > 11 / 3.6, "twelve calls take at least eleven gaps"
    assert len(passed) == 12, "each call took its turn"
    assert min(later - earlier for earlier, later in itertools.pairwise(passed)) > 1 / 3.6 - 0.001
    assert not refusals(service)


async def test_refused_for_longer_than_patience_is_throttled(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator
) -> None:
    service = await emulator({"chaos": {"throttle": {"probability": 1}}})
    async with serving(settings.model_copy(update={"throttle_patience_s": 1.0})) as api:
        made = await api.submit(batch([{"reward": 1}], runtime=runtime(service), limits={"max_attempts": 1}))
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == "throttled"
    assert "ThrottlingException" in result["rollout"]["failure"]["message"]


async def test_a_container_that_does_not_start_is_start_failed_after_its_attempts(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator
) -> None:
    service = await emulator({"chaos": {"fail_start": {"probability": 1}}})
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 1}], runtime=runtime(service), limits={"max_attempts": 2}))
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == "start_failed"
    assert "RuntimeClientError" in result["rollout"]["failure"]["message"]
    assert result["rollout"]["attempt"] == 2


@pytest.mark.parametrize("reports", [True, False], ids=["with-push", "without-push"])
async def test_a_lost_container_is_seen_by_its_silence_or_by_the_time_limit(
    noticing_silence: DispatcherSettings, batch: Make, emulator: StartEmulator, runs_dir: Path, reports: bool
) -> None:
    service = await emulator()
    async with serving(noticing_silence) as api:
        payload = {"act": "hang", "reports": reports}
        limits = {"max_attempts": 1, "rollout_timeout_s": 600 if reports else 8}
        made = await api.submit(batch([payload], runtime=runtime(service), limits=limits))
        await api.until_state(made["batch_id"], "running", 1)
        session_id = (await api.rollouts(made["batch_id"]))[0]["session_id"]

        if reports:
            await has_reported(runs_dir, session_id)
        async with asking() as http:
            assert (await http.delete(f"{service.url}/_emulator/sessions/{session_id}")).status_code == 204
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == ("agent_died" if reports else "timed_out")


async def test_an_unknown_runtime_fails_the_batch_with_the_services_own_words(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator
) -> None:
    service = await emulator()
    async with serving(settings) as api:
        spec = runtime(service, agent_runtime_arn=ARN.replace("contract", "unknown"))
        made = await api.submit(batch([{"reward": 1}] * 3, runtime=spec))
        await api.results(made["batch_id"])
        status = await api.status(made["batch_id"])
    assert "ResourceNotFoundException" in status["contract_error"]
    assert status["failures"] == {"contract_error": 1}


async def test_stop_is_repeated_until_the_runtime_confirms_it(
    settings: DispatcherSettings, batch: Make, emulator: StartEmulator
) -> None:
    service = await emulator()
    async with serving(settings) as api, asking() as http:
        chaos = f"{service.url}/_emulator/chaos/{ARN}"
        made = await api.submit(batch([{"act": "hang"}] * 2, runtime=runtime(service)))
        await api.until_state(made["batch_id"], "running", 2)
        assert (await http.put(chaos, json={"throttle": {"probability": 1}})).status_code == 200
        assert (await api.cancel(made["batch_id"]))["state"] == "cancelling"
        assert len(await api.results(made["batch_id"])) == 2, "results do not wait for the stops"
        await eventually(lambda: refusals(service) >= 2, "the runtime has refused to stop them")
        assert len(await sessions(service)) == 2
        assert (await http.put(chaos, json={})).status_code == 200

        async def finished() -> bool:
            return bool((await api.status(made["batch_id"]))["state"] == "finished")

        await eventually(finished, "the stops are confirmed")
        assert not await sessions(service)
