"""SIGKILL and restart of a real dispatcher process mid-batch: nothing lost, nothing doubled, every session stopped."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import agent_pids, calling, kill_all, on_both, runs
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually
from tests.kit.services import Service, Services

Make = Callable[..., dict[str, Any]]


def environment(settings: DispatcherSettings, port: int) -> dict[str, str]:
    given = settings.model_dump(exclude_none=True, exclude={"port", "host", "log_level", "log_json", "webhook_hosts"})
    given = {k: v.get_secret_value() if isinstance(v, SecretStr) else v for k, v in given.items()}
    return {f"ROLLWAY_DISPATCHER_{k.upper()}": str(v) for k, v in given.items()} | {
        "ROLLWAY_DISPATCHER_PORT": str(port)
    }


async def start(services: Services, settings: DispatcherSettings, port: int = 0) -> Service:
    return await services.start_async("dispatcher", ["-m", "rollway_dispatcher"], env=environment(settings, port))


@on_both
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_running_agents_are_found_again_and_each_result_comes_once(
    services: Services, settings: DispatcherSettings, batch: Make, runs_dir: Path, tmp_path: Path, state_path: Path,
    number: signal.Signals,
) -> None:  # fmt: skip
    gate = tmp_path / "go"
    service = await start(services, settings)
    async with calling(service.url) as api:
        payloads = [
            {"reward": 1},
            {"reward": 2, "wait_for": str(gate), "reports": True},
            {"reward": 3, "wait_for": str(gate)},
        ]
        made = await api.submit(batch(payloads, n=2, limits={"max_attempts": 1}), key="k")
        await api.until_state(made["batch_id"], "succeeded", 2)
        await api.until_state(made["batch_id"], "running", 4)
        before = (await api.page(made["batch_id"]))["results"]
        await eventually(lambda: len(agent_pids(state_path)) == 4, "those that have finished are stopped", 120)
    running = {r: _stat(r) for r in agent_pids(state_path)}
    service.signal(number)
    await asyncio.to_thread(service.wait)
    assert {r: _stat(r) for r in running} == running, "agents outlive their dispatcher"
    service = await start(services, settings, service.port)
    await asyncio.to_thread(gate.touch)
    async with calling(service.url) as api:
        again = await api.submit(batch(payloads, n=2, limits={"max_attempts": 1}), key="k")
        assert again["batch_id"] == made["batch_id"], "the idempotency key outlives a restart"
        results = await api.results(made["batch_id"])
        assert results[: len(before)] == before, "what was reported stays as it was"
        assert Counter(r["rollout"]["group_id"] for r in results) == {"g0": 2, "g1": 2, "g2": 2}
        assert all(r["rollout"]["state"] == "succeeded" for r in results)
        assert all(r["rollout"]["attempt"] == 1 for r in results)
        await eventually(lambda: not agent_pids(state_path), "every session is stopped")
    assert sorted(runs(runs_dir).values()) == [1] * 6, "no agent ran twice"


@on_both
async def test_killed_again_and_again_at_any_moment_it_loses_and_doubles_nothing(
    services: Services, settings: DispatcherSettings, batch: Make, runs_dir: Path, state_path: Path,
    gateway: ScriptedGateway,
) -> None:  # fmt: skip
    dice = random.Random(20)
    service = await start(services, settings)
    async with calling(service.url) as api:
        made = await api.submit(batch([{"reward": i, "reports": i % 2 == 0} for i in range(8)], n=2), key="k")
    for _ in range(6):
        await asyncio.sleep(dice.uniform(0.0, 0.7))  # a random moment is the point
        service.kill()
        service = await start(services, settings, service.port)
    async with calling(service.url) as api:
        results = await api.results(made["batch_id"])
        assert Counter(r["rollout"]["rollout_id"] for r in results) == {
            f"{made['batch_id']}/g{g}/{i}": 1 for g in range(8) for i in range(2)
        }
        states = Counter((r["rollout"]["state"], r["rollout"]["attempt"]) for r in results)
        assert states == {("succeeded", 1): 16}
        for r in results:
            assert r["rollout"]["rewards"] == [float(r["rollout"]["group_id"][1:])]
            assert r["trajectory"]["session_id"] == r["rollout"]["session_id"]
        await eventually(lambda: not agent_pids(state_path), "every session is stopped")

        async def none_left() -> bool:
            return (await api.http.get("/v1/sessions")).json() == []

        await eventually(none_left, "no stop is left to do")
    assert sorted(runs(runs_dir).values()) == [1] * 16, "each rollout's agent ran once"
    assert set(gateway.calls.values()) == {1}


@on_both
async def test_an_agent_that_died_while_the_dispatcher_was_down_is_noticed(
    services: Services, settings: DispatcherSettings, batch: Make, state_path: Path
) -> None:
    service = await start(services, settings)
    async with calling(service.url) as api:
        made = await api.submit(batch([{"act": "hang"}], limits={"max_attempts": 1}))
        await api.until_state(made["batch_id"], "running", 1)
    service.kill()
    kill_all(agent_pids(state_path))
    service = await start(services, settings, service.port)
    async with calling(service.url) as api:
        (result,) = await api.results(made["batch_id"], within_s=120)
    assert result["rollout"]["failure"]["type"] == "agent_died"


async def test_two_dispatchers_on_one_state_file_refuse(services: Services, settings: DispatcherSettings) -> None:
    await start(services, settings)
    second = services.spawn("second", ["-m", "rollway_dispatcher"], env=environment(settings, 0))
    assert await asyncio.to_thread(second.wait) == 2
    assert "in use by another dispatcher" in second.logs()
    assert "Traceback" not in second.logs()


def _stat(pid: int) -> str:
    """Name and start time: the same process, not a successor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
    return fields[0] + fields[1].split()[19]
