"""The app on the test's own event loop, where a blocking call, a leaked task or an open socket fails the test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import uvicorn

from rollway_emulator.agents import AgentSpec
from rollway_emulator.app import create_app
from rollway_emulator.settings import EmulatorSettings
from rollway_kit.serve import bind
from tests.emulator.emulator_under_test import ARN, alive, new_session_id, scripted_agent, sdk_client
from tests.kit.deadlines import eventually


def _invoke(client: Any, session_id: str, **wish: Any) -> Any:
    answer = client.invoke_agent_runtime(
        agentRuntimeArn=ARN, runtimeSessionId=session_id, payload=json.dumps(wish).encode()
    )
    body = answer["response"]
    try:
        return json.loads(body.read())
    finally:
        body.close()


async def test_sessions_live_and_end_without_blocking_the_loop_or_leaking_a_task(tmp_path: Path) -> None:
    settings = EmulatorSettings(agents=tmp_path, state_dir=tmp_path / "state", ping_interval_s=0.05)
    agents = [AgentSpec.model_validate(scripted_agent())]
    app = create_app(settings, agents)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with bind("127.0.0.1", 0) as sock, sdk_client(f"http://127.0.0.1:{sock.getsockname()[1]}") as client:
        async with app.router.lifespan_context(app), asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[sock]))
            await eventually(lambda: server.started, "the emulator serves")
            stopped, left_running = new_session_id(), new_session_id()
            pids = (await asyncio.to_thread(_invoke, client, stopped, do="family"))["pids"]
            await asyncio.to_thread(client.stop_runtime_session, agentRuntimeArn=ARN, runtimeSessionId=stopped)
            pids += (await asyncio.to_thread(_invoke, client, left_running, do="family"))["pids"]
            server.should_exit = True
            await serving
    assert not any(map(alive, pids))
