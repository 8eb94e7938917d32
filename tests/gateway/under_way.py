"""How far calls are, seen from outside, so that nothing is done to them too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.gateway.conftest import RunningGateway
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import ScriptedEngine


async def under_way(
    gateway: RunningGateway, engine: ScriptedEngine, ticket: dict[str, Any], body: dict[str, Any]
) -> asyncio.Task[httpx.Response]:
    """A chat call whose answer the engine holds back (`Reply.hold`): the engine waits in the middle of it, and of a
    stream the agent has the beginning, so the gateway has its first token."""
    begun = asyncio.Event()

    async def ask() -> httpx.Response:
        url = ticket["base_url"] + "/chat/completions"
        async with gateway.http.stream("POST", url, json=body) as answer:
            begun.set()
            await answer.aread()
            return answer

    asking = asyncio.create_task(ask())
    streams = bool(body.get("stream"))
    await eventually(lambda: engine.on_hold and (begun.is_set() or not streams), "a call in the middle of its answer")
    return asking


@asynccontextmanager
async def answered(client_class: Callable[..., Any] = httpx.AsyncClient) -> AsyncIterator[tuple[Any, list[int]]]:
    """An HTTP client to give to an SDK, and the status of each answer that came to it, those it retried among them.

    Args:
        client_class: an SDK's own, where it takes no other.
    """
    statuses: list[int] = []

    async def note(answer: Any) -> None:
        statuses.append(answer.status_code)

    async with client_class(event_hooks={"response": [note]}, timeout=60) as http:
        yield http, statuses
