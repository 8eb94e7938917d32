"""`rollway sessions` after a crash: it lists what any runtime still runs in the dispatcher's name, and ends it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import ARN, agent_pids, calling
from tests.dispatcher.test_agentcore import StartEmulator, asking, runtime, sessions
from tests.dispatcher.test_restart import start
from tests.kit.deadlines import eventually
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]


async def rollway_sessions(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and what it said, on a terminal of 80 columns."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollway_local", "sessions", *arguments, cwd=folder, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.timeout(400)
async def test_after_a_crash_everything_that_was_started_is_listed_and_ended(
    services: Services, settings: DispatcherSettings, batch: Make, emulator: StartEmulator, tmp_path: Path,
    state_path: Path,
) -> None:  # fmt: skip
    """Sessions of two runtimes, of which some are being stopped when the dispatcher is killed."""
    cloud = await emulator()
    chaos = f"{cloud.url}/_emulator/chaos/{ARN}"
    service = await start(services, settings)
    async with calling(service.url) as api, asking() as http:
        there = await api.submit(batch([{"act": "hang"}], n=3, runtime=runtime(cloud)))
        here = await api.submit(batch([{"act": "hang"}], n=2))
        await api.until_state(there["batch_id"], "running", 3)
        await api.until_state(here["batch_id"], "running", 2)
        await http.put(chaos, json={"throttle": {"probability": 1}})
        ids = {r["index"]: r["session_id"] for r in await api.rollouts(there["batch_id"])}
        (await api.http.post(f"/v1/batches/{there['batch_id']}/rollouts/g0/0/cancel")).raise_for_status()
    service.kill()
    service = await start(services, settings, service.port)
    at = ("--dispatcher", service.url)

    status, said = await rollway_sessions(tmp_path, *at)
    assert status == 0
    running = set(await sessions(cloud))
    assert running == set(ids.values()) and all(s in said for s in running), "ids are whole, to be copied"
    assert said.count("stopping") == 1 and len(agent_pids(state_path)) == 2

    status, said = await rollway_sessions(tmp_path, "stop", ids[1], "x" * 36, "--wait-s", "1", *at)
    assert status == 1 and "0 stopped, 1 not confirmed" in said and ids[1] in said.replace("x" * 36, "")
    assert f"{'x' * 36} is not listed" in said and ids[2] not in said

    status, said = await rollway_sessions(tmp_path, "stop", "--all", "--wait-s", "10", *at)
    assert status == 1 and "2 stopped, 3 not confirmed" in said, "the runtime refuses to stop its own"
    assert not agent_pids(state_path) and len(await sessions(cloud)) == 3
    async with asking() as http:
        await http.put(chaos, json={})
    status, said = await rollway_sessions(tmp_path, "stop", "--all", *at)
    assert status == 0 and " stopped, 0 not confirmed" in said
    assert not await sessions(cloud)
    assert "no sessions" in (await rollway_sessions(tmp_path, *at))[1]
    async with calling(service.url) as api:
        for made in (there, here):

            async def finished(batch_id: str = made["batch_id"]) -> bool:
                return bool((await api.status(batch_id))["state"] == "finished")

            await eventually(finished, "its batch is over", 120)


async def test_help_says_what_it_does_and_how_it_ends(tmp_path: Path) -> None:
    status, said = await rollway_sessions(tmp_path, "--help")
    assert status == 0
    for part in (
        "list",
        "stop",
        "--all",
        "--wait-s",
        "--dispatcher",
        "ROLLWAY_DISPATCHER_URL",
        "ROLLWAY_DISPATCHER_API_KEY",
        "Exit status",
    ):
        assert part in said
