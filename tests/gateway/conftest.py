"""A gateway on a free port in the test's own loop, in front of scripted engines."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from rollway_gateway.app import GatewayApp
from rollway_gateway.gateway import Gateway
from rollway_gateway.settings import GatewaySettings
from rollway_wire.codec import load_trajectory
from rollway_wire.tokens import Trajectory
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import ScriptedEngine

FAST: dict[str, Any] = {
    "health_interval_s": 0.1, "health_timeout_s": 30.0, "retry_after_s": 1.0, "alive_window_s": 0.0, "port": 0,
    "retry_grace_s": 0.0,
}  # fmt: skip


class RunningGateway:
    """A gateway with its control-plane client."""

    def __init__(self, url: str, app: GatewayApp, http: httpx.AsyncClient) -> None:
        self.url = url
        self.http = http
        self._app = app

    @property
    def inside(self) -> Gateway:
        found: Gateway = self._app.control.state.gateway
        return found

    async def add(self, *engines: ScriptedEngine, pool: str = "default", **spec: Any) -> list[dict[str, Any]]:
        answers = [
            await self.http.post(f"/v1/pools/{pool}/workers", json={"url": engine.url, **spec}) for engine in engines
        ]
        assert all(a.is_success for a in answers), answers[0].text
        return [a.json() for a in answers]

    async def open(self, **spec: Any) -> dict[str, Any]:
        answer = await self.http.post("/v1/sessions", json=spec)
        assert answer.status_code in (200, 201), answer.text
        ticket: dict[str, Any] = answer.json()
        return ticket

    async def trajectory(self, session_id: str) -> Trajectory:
        answer = await self.http.get(f"/v1/sessions/{session_id}/trajectory")
        assert answer.status_code == 200, answer.text
        return load_trajectory(answer.json())

    async def seal(self, session_id: str) -> Trajectory:
        answer = await self.http.post(f"/v1/sessions/{session_id}/seal")
        assert answer.status_code == 200, answer.text
        return load_trajectory(answer.json())

    async def settled(self, session_id: str) -> Trajectory:
        """The trajectory once no call of the session is in flight."""

        async def idle() -> bool:
            view = (await self.http.get(f"/v1/sessions/{session_id}")).json()
            return not view["in_flight"] and view["calls"] > 0

        await eventually(idle, f"session {session_id} idle")
        return await self.trajectory(session_id)

    def openai(self, ticket: dict[str, Any], **kwargs: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=ticket["base_url"], api_key="EMPTY", **{"max_retries": 0, **kwargs})


@asynccontextmanager
async def running_gateway(**settings: Any) -> AsyncIterator[RunningGateway]:
    """As it runs in production, with a journal: one of its own where ``settings`` name no folder, gone after."""
    with TemporaryDirectory(prefix="rollway-journal-") as folder:
        if settings.get("durability") != "memory":
            settings = {"journal_dir": Path(folder), **settings}
        async with _running(GatewaySettings(**{**FAST, **settings})) as running:
            yield running


@asynccontextmanager
async def _running(settings: GatewaySettings) -> AsyncIterator[RunningGateway]:
    app = GatewayApp(settings)
    async with app.control.router.lifespan_context(app.control):
        sock = socket.create_server(("127.0.0.1", 0))
        # A client gives up an idle connection after 5 s: a server that did so as well might close one just taken.
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1, timeout_keep_alive=75
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        try:
            await eventually(lambda: server.started, "the gateway serves")
            async with httpx.AsyncClient(base_url=url, timeout=30) as http:
                yield RunningGateway(url, app, http)
        finally:
            server.should_exit = True
            await serving
            sock.close()


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def gateway(engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    """A gateway whose pool ``default`` has the one engine."""
    async with running_gateway() as running:
        await running.add(engine)
        yield running
