"""A container that falls silent while its runtime refuses to stop it, and then the dispatcher dies, too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import ARN, Api, calling, has_reported, on_both, runs
from tests.dispatcher.test_agentcore import StartEmulator, asking, runtime, sessions
from tests.dispatcher.test_restart import start
from tests.kit.deadlines import eventually
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]


async def one(api: Api, batch_id: str) -> dict[str, Any]:
    (only,) = await api.rollouts(batch_id)
    return only


async def listed(api: Api) -> dict[str, str]:
    """State by session id."""
    return {s["session_id"]: s["state"] for s in (await api.http.get("/v1/sessions")).raise_for_status().json()}


@on_both
@pytest.mark.timeout(400)
async def test_a_silent_session_is_given_up_for_another_and_stopped_in_the_end_over_a_crash(
    services: Services, noticing_silence: DispatcherSettings, batch: Make, emulator: StartEmulator, tmp_path: Path,
    runs_dir: Path,
) -> None:  # fmt: skip
    cloud = await emulator()
    chaos = f"{cloud.url}/_emulator/chaos/{ARN}"
    payload = {"reward": 1, "reports": True, "wait_for": str(tmp_path / "go")}
    service = await start(services, noticing_silence)
    async with asking() as http:
        async with calling(service.url) as api:
            made = await api.submit(batch([payload], runtime=runtime(cloud), limits={"max_attempts": 2}))
            await api.until_state(made["batch_id"], "running", 1)
            frozen = (await one(api, made["batch_id"]))["session_id"]
            await has_reported(runs_dir, frozen)  # one that never did is not missed
            await http.put(chaos, json={"throttle": {"probability": 1}})
            (there,) = (await http.get(f"{cloud.url}/_emulator/sessions")).json()["sessions"]
            os.killpg(there["pid"], signal.SIGSTOP)

            async def given_up() -> bool:
                return bool((await one(api, made["batch_id"]))["attempt"] == 2)

            await eventually(given_up, "its silence is noticed", 120)
            assert (await listed(api))[frozen] == "stopping"
        service.kill()
        service = await start(services, noticing_silence, service.port)
        async with calling(service.url) as api:
            assert (await listed(api))[frozen] == "stopping", "the crash forgets no stop"
            assert await sessions(cloud) == [frozen], "and the runtime has not confirmed it"
            await http.put(chaos, json={})
            await asyncio.to_thread((tmp_path / "go").touch)
            (result,) = await api.results(made["batch_id"])
            rollout = result["rollout"]
            assert (rollout["state"], rollout["attempt"]) == ("succeeded", 2)
            assert rollout["session_id"] != frozen

            async def quiet() -> bool:
                return await listed(api) == {} and await sessions(cloud) == []

            await eventually(quiet, "every session is stopped", 90)
    assert runs(runs_dir) == {frozen: 1, rollout["session_id"]: 1}
