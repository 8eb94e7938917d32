"""The ASGI application: agents' routes straight to the capture path, everything else to the control plane.

One port serves both, or two listeners one each: which of them a request came to is the local address of its
connection, which nothing in the request can change. On the agents' listener there is nothing but agents' routes and
``/health``; the admin listener serves no agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from rollway_gateway import agent_routes
from rollway_gateway.gateway import open_gateway
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.own_api import own_api
from rollway_gateway.processes.forwarding import Siblings, forward
from rollway_gateway.processes.totals import totals_api
from rollway_gateway.replies import send_error, send_whole
from rollway_gateway.rllm_api import rllm_api
from rollway_gateway.settings import GatewaySettings
from rollway_kit.app import create_app
from rollway_kit.bearer import BearerGate

CONTROL_BODY_BYTES = 4 * 2**20
HEALTH = "/health"


class GatewayApp:
    """Serve it with any ASGI server that runs the lifespan."""

    def __init__(
        self, settings: GatewaySettings, told: Sequence[Mapping[str, Any]] = (), *, collects: bool = False
    ) -> None:
        """
        Args:
            settings: with the ports that are bound, where there are two.
            told, collects: as `open_gateway`.
        """

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            async with open_gateway(settings, told, collects=collects) as gateway:
                app.state.gateway = gateway
                yield

        self.control = create_app(
            "Rollway gateway", lifespan=lifespan, max_body_bytes=CONTROL_BODY_BYTES,
            body_timeout_s=settings.body_timeout_s,
        )  # fmt: skip
        self.control.include_router(own_api())
        self.control.include_router(rllm_api())
        self._siblings = None
        if settings.process is not None:
            self._siblings = Siblings(settings.siblings.split(","), settings.process)
            self.control.include_router(totals_api())
        self._admin_port = settings.admin_port
        self._admin: ASGIApp = self.control
        if settings.admin_keys:
            self._admin = BearerGate(self.control, settings.admin_keys, {HEALTH}, "ROLLWAY_GATEWAY_ADMIN_KEY")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.control(scope, receive, send)
            return
        split = self._admin_port is not None
        if split and _local_port(scope) == self._admin_port:
            await self._admin(scope, receive, send)
        elif (found := agent_routes.match(scope["path"])) is not None:
            gateway = self.control.state.gateway
            if self._siblings is not None and (home := self._siblings.home(gateway, found[0], scope)) is not None:
                await forward(gateway, home, scope, receive, send)
            else:
                await agent_routes.serve(gateway, *found, scope, receive, send)
        elif split:
            await _nothing_else(scope, send)
        else:
            await self._admin(scope, receive, send)


def _local_port(scope: Scope) -> int | None:
    server = scope.get("server")
    return server[1] if server else None


async def _nothing_else(scope: Scope, send: Send) -> None:
    if scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
        await send_whole(send, 200, [(b"content-type", b"application/json")], orjson.dumps({"status": "ok"}))
        return
    await send_error(send, AgentError(404, "no such route for agents"))
