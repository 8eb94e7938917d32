"""Every session that may still run is listed, over crashes of ours, and stopped when asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import ARN, Api, agent_pids, calling, on_both, serving
from tests.dispatcher.test_agentcore import StartEmulator, asking, refusals, runtime, sessions
from tests.dispatcher.test_restart import start
from tests.kit.deadlines import eventually
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]


async def listed(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.http.get("/v1/sessions")).raise_for_status().json()
    return found


async def stop(api: Api, session_ids: list[str] | None = None) -> list[dict[str, Any]]:
    answer = await api.http.post("/v1/sessions/stop", json={"session_ids": session_ids})
    found: list[dict[str, Any]] = answer.raise_for_status().json()
    return found


@on_both
async def test_sessions_of_all_batches_are_listed_and_the_ones_named_stopped(
    settings: DispatcherSettings, batch: Make, state_path: Path
) -> None:
    async with serving(settings) as api:
        assert await listed(api) == []
        made = [await api.submit(batch([{"act": "hang"}] * 2)) for _ in range(2)]
        for m in made:
            await api.until_state(m["batch_id"], "running", 2)
        all_of_them = await listed(api)
        assert [s["since"] for s in all_of_them] == sorted(s["since"] for s in all_of_them)
        assert {(s["batch_id"], s["group_id"], s["index"]) for s in all_of_them} == {
            (m["batch_id"], g, 0) for m in made for g in ("g0", "g1")
        }
        assert {(s["state"], s["runtime"]) for s in all_of_them} == {("running", "process")}
        one = all_of_them[0]["session_id"]
        left = await stop(api, [one, "unknown"])
        assert {s["session_id"] for s in left} <= {one}

        async def gone() -> bool:
            return one not in {s["session_id"] for s in await listed(api)}

        await eventually(gone, "the session is stopped")
        assert len(await listed(api)) == 3 == len(agent_pids(state_path))
        await stop(api)

        async def quiet() -> bool:
            return await listed(api) == [] and not agent_pids(state_path)

        await eventually(quiet, "nothing runs any more")
        assert await stop(api) == []


async def test_after_a_crash_orphans_are_found_and_stopped_and_those_that_resist_stay_listed(
    services: Services, settings: DispatcherSettings, batch: Make, emulator: StartEmulator
) -> None:
    """SIGKILL with sessions that run, that start and that are being stopped; the next start knows each of them, and in
    the end the runtime has none."""
    cloud = await emulator()
    chaos = f"{cloud.url}/_emulator/chaos/{ARN}"
    service = await start(services, settings)
    async with calling(service.url) as api, asking() as http:
        running = await api.submit(batch([{"act": "hang"}] * 3, runtime=runtime(cloud), limits={"max_attempts": 1}))
        ending = await api.submit(batch([{"act": "hang"}] * 2, runtime=runtime(cloud)))
        await api.until_state(running["batch_id"], "running", 3)
        await api.until_state(ending["batch_id"], "running", 2)
        await http.put(chaos, json={"throttle": {"probability": 1}})
        await api.cancel(ending["batch_id"])
        before = await listed(api)
        assert sorted(s["state"] for s in before) == ["running"] * 3 + ["stopping"] * 2
        assert {s["runtime"].split()[:2] == ["agentcore", ARN] for s in before} == {True}
        starting = await api.submit(batch([{"act": "hang"}] * 2, runtime=runtime(cloud), experiment_id="late"))
    service.kill()
    service = await start(services, settings, service.port)
    async with calling(service.url) as api, asking() as http:
        known = {s["session_id"] for s in await listed(api)}
        assert known >= {s["session_id"] for s in before} and set(await sessions(cloud)) <= known
        left = await stop(api)
        assert {s["state"] for s in left} == {"stopping"} and len(left) >= 5
        refused = refusals(cloud)
        await eventually(lambda: refusals(cloud) >= refused + 2, "the runtime refuses", 120)
        assert len(await sessions(cloud)) == 5, "the runtime refuses, so they are not said to be gone"
        assert {s["session_id"] for s in await listed(api)} >= set(await sessions(cloud))
        await http.put(chaos, json={})

        async def quiet() -> bool:
            return await listed(api) == []

        await eventually(quiet, "the runtime confirmed every stop", 120)
        assert not await sessions(cloud)
        for m in (running, ending, starting):
            assert (await api.status(m["batch_id"]))["state"] == "finished"
