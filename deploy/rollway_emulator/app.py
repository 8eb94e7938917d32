"""The emulator put together: what is opened, in which order, and what answers where.

Opened: state folder, orphan guard, HTTP client to containers, fleet. Closed in reverse, so every container has ended
before the guard is let go, and the guard sweeps once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rollway_emulator.admin_routes import AdminRoutes, admin_routes
from rollway_emulator.agents import AgentSpec
from rollway_emulator.aws_routes import AwsRoutes, aws_routes, error_response
from rollway_emulator.container_link import open_container_link
from rollway_emulator.errors import UnknownOperationException
from rollway_emulator.fleet import open_fleet
from rollway_emulator.lifecycle import Limits
from rollway_emulator.orphan_watch import open_orphan_watch
from rollway_emulator.ports import PortRange
from rollway_emulator.session import Premises
from rollway_emulator.settings import EmulatorSettings
from rollway_kit.app import problem_response
from rollway_wire.problems import RollwayError

log = structlog.get_logger()


def _made(state_dir: Path) -> Path:
    resolved = state_dir.resolve()
    (resolved / "sessions").mkdir(parents=True, exist_ok=True)
    return resolved


async def _on_no_route(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    what = f"{request.method} {request.url.path}"
    if request.url.path.startswith("/_emulator"):
        error = RollwayError(f"{exc.detail}: {what}")
        error.status, error.code = exc.status_code, "http_error"
        return problem_response(error, request.url.path)
    return error_response(
        UnknownOperationException(f"no operation {what}: InvokeAgentRuntime and StopRuntimeSession are")
    )


def create_app(settings: EmulatorSettings, agents: Sequence[AgentSpec]) -> Starlette:
    """The ASGI app; its lifespan opens everything.

    Raises (in the lifespan):
        OSError: the state folder cannot be made, or no process can be started.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state_dir = await asyncio.to_thread(_made, settings.state_dir)
        async with open_orphan_watch() as orphans, open_container_link(ping_timeout_s=settings.ping_timeout_s) as link:
            premises = Premises(
                state_dir, link, PortRange(settings.first_port, settings.last_port), orphans,
                Limits(settings.idle_timeout_s, settings.lifetime_s),
                ping_interval_s=settings.ping_interval_s, stop_grace_s=settings.stop_grace_s,
                keep_folders=settings.keep_folders,
            )  # fmt: skip
            async with open_fleet(settings, agents, premises) as fleet:
                app.router.routes += aws_routes(AwsRoutes(settings, fleet, link))
                app.router.routes += admin_routes(AdminRoutes(fleet))
                log.info("emulator_ready", agents=sorted(fleet.agents), sessions_folder=str(state_dir / "sessions"))
                yield

    return Starlette(lifespan=lifespan, exception_handlers={404: _on_no_route, 405: _on_no_route})
