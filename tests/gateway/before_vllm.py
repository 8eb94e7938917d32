"""Gateways before real vLLM servers, which take seconds on a busy machine for what a scripted engine does at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rollway_gateway.session import Session
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.deadlines import eventually
from tests.kit.engine_word import running
from tests.kit.vllm_server import VllmServer, engine_client

PATIENT: dict[str, Any] = {
    "health_interval_s": 5.0, "health_timeout_s": 60.0, "probe_timeout_s": 400.0, "alive_window_s": 60.0,
}  # fmt: skip
"""A server that is slow is not taken for a dead one."""


@asynccontextmanager
async def gateway_before(*servers: VllmServer, **settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway that serves each server, under its process id, once the server has nothing left to do.

    With ``mode="exact"`` it serves them in exact mode or not at all.
    """
    async with running_gateway(**{**PATIENT, **settings}) as gateway, engine_client() as http:
        gateway.http.timeout = 600.0
        for server in servers:

            async def idle(url: str = server.url) -> bool:
                return not await running(http, url)

            await eventually(idle, "what earlier tests asked has ended", within_s=120)
            spec = {"url": server.url, "worker_id": str(server.pid)}
            told = await gateway.http.post("/v1/pools/default/workers", json=spec)
            state = told.json()
            assert state["healthy"] and state["model_name"] == server.model, told.text
            assert state["mode"] == settings.get("mode", state["mode"]), told.text
        yield gateway


def heard(session: Session) -> int:
    """Tokens of the session's calls in flight that the gateway has read so far."""
    answers = [call._answer for call in session.calls]  # type: ignore[attr-defined]
    return sum(answer.evidence.captured_tokens for answer in answers)
