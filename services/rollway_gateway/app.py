"""The ASGI application: agents' routes straight to the capture path, everything else to the control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from rollway_gateway import agent_routes
from rollway_gateway.gateway import open_gateway
from rollway_gateway.own_api import own_api
from rollway_gateway.rllm_api import rllm_api
from rollway_gateway.settings import GatewaySettings
from rollway_kit.app import create_app

CONTROL_BODY_BYTES = 4 * 2**20


class GatewayApp:
    """Serve it with any ASGI server that runs the lifespan."""

    def __init__(self, settings: GatewaySettings) -> None:
        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            async with open_gateway(settings) as gateway:
                app.state.gateway = gateway
                yield

        self.control = create_app("Rollway gateway", lifespan=lifespan, max_body_bytes=CONTROL_BODY_BYTES)
        self.control.include_router(own_api())
        self.control.include_router(rllm_api())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (found := agent_routes.match(scope["path"])) is not None:
            await agent_routes.serve(self.control.state.gateway, *found, scope, receive, send)
            return
        await self.control(scope, receive, send)
