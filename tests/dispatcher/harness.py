"""A dispatcher on a real port and a client of its API, for tests."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from rollway_dispatcher.app import create
from rollway_dispatcher.settings import DispatcherSettings
from rollway_kit.serve import bind
from tests.kit.deadlines import eventually

AGENTS = Path(__file__).parent / "agents"
on_both = pytest.mark.parametrize("state", ["sqlite", "postgres"], indirect=True)
"""Run with the state in a file and on a real PostgreSQL."""
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/contract-a1b2c3"


def process_runtime(agent: str = "contract_agent.py", **more: Any) -> dict[str, Any]:
    return {"kind": "process", "command": [sys.executable, str(AGENTS / agent)], **more}


@dataclass
class Api:
    """The dispatcher's routes."""

    http: httpx.AsyncClient

    async def submit(self, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
        answer = await self.http.post("/v1/batches", json=body, headers={"idempotency-key": key} if key else {})
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def status(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"/v1/batches/{batch_id}")).raise_for_status().json()
        return found

    async def rollouts(self, batch_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            (await self.http.get(f"/v1/batches/{batch_id}/rollouts")).raise_for_status().json()
        )
        return found

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        answer = await self.http.post(f"/v1/batches/{batch_id}/cancel")
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    async def page(self, batch_id: str, **query: Any) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/batches/{batch_id}/results", params=query, timeout=90)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    async def results(self, batch_id: str, within_s: float = 240) -> list[dict[str, Any]]:
        """Every result, to the end."""
        found: list[dict[str, Any]] = []
        cursor, finished = 0, False
        async with asyncio.timeout(within_s):
            while not finished:
                page = await self.page(batch_id, cursor=cursor, wait_s=20)
                found += page["results"]
                cursor, finished = page["cursor"], page["finished"]
        return found

    async def until_state(self, batch_id: str, state: str, n: int, within_s: float = 120) -> None:
        async def there() -> bool:
            return (await self.status(batch_id))["counts"].get(state, 0) >= n

        await eventually(there, f"{n} rollouts {state}", within_s)


@asynccontextmanager
async def serving(settings: DispatcherSettings) -> AsyncIterator[Api]:
    """The dispatcher in this process and loop, on a port of its own. Its lifespan runs outside uvicorn, so that a
    failure of it is itself."""
    with bind("127.0.0.1", settings.port) as sock:
        settings = settings.model_copy(update={"port": sock.getsockname()[1]})
        app = create(settings)
        async with app.router.lifespan_context(app) as state:

            async def with_state(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, "state": dict(state or {})}, receive, send)

            config = uvicorn.Config(with_state, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            serve = asyncio.create_task(server.serve(sockets=[sock]))
            try:
                await eventually(lambda: server.started or serve.done(), "dispatcher started")
                async with calling(f"http://127.0.0.1:{settings.port}") as api:
                    yield api
            finally:
                server.should_exit = True
                await serve


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[Api]:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        yield Api(http)


async def has_reported(folder: Path, session_id: str, beats: int = 1) -> None:
    """Wait until the dispatcher has taken so many pushes of a session's agent: from then on its silence counts."""
    said = folder / f".reported-{session_id}"
    await eventually(lambda: said.exists() and len(said.read_text()) >= beats, "its agent reports", 120)


def runs(folder: Path) -> dict[str, int]:
    """How often each session's agent ran."""
    return {f.name: len(f.read_text().splitlines()) for f in folder.iterdir() if not f.name.startswith(("died-", "."))}


def agent_pids(state_path: Path) -> list[int]:
    """Leaders and children of the agents of one dispatcher that live, by what their environment says."""
    owner = f"ROLLWAY_AGENT_OWNER={state_path.resolve()}.agents"
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                alive = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
                if alive and owner.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
