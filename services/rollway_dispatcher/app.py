"""The dispatcher's HTTP app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypedDict

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from rollway_dispatcher.api import batches, reports, results, sessions
from rollway_dispatcher.api.description import describe
from rollway_dispatcher.api.reports_lane import ReportsLane
from rollway_dispatcher.database import StoreTrouble
from rollway_dispatcher.dispatcher import Dispatcher, open_dispatcher
from rollway_dispatcher.settings import DispatcherSettings
from rollway_kit.app import create_app, problem_response
from rollway_kit.bearer import BearerGate
from rollway_wire.problems import Unavailable

DESCRIPTION = """\
Post a batch of inputs; rollouts run where `runtime` says; rewards and tokens come back joined, each result once.
Errors are RFC 9457 `application/problem+json`.
"""


async def _on_store_trouble(request: Request, exc: Exception) -> JSONResponse:
    return problem_response(Unavailable(f"the state cannot be used now: {exc}", retry_after_s=1), request.url.path)


class State(TypedDict):
    dispatcher: Dispatcher


def create(
    settings: DispatcherSettings,
    on_crash: Callable[[], None] = lambda: None,
    on_open: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app; its lifespan opens the state, S3, the gateway and the runtimes and runs the engine.

    ``on_open`` is called once, when everything is open. ``on_crash`` is called when a bug has ended the engine: the
    process should end, and be started again.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        async with open_dispatcher(settings, on_crash) as dispatcher:
            on_open()
            yield {"dispatcher": dispatcher}

    app = create_app(
        "Rollway dispatcher", lifespan=lifespan, max_body_bytes=settings.max_body_bytes, description=DESCRIPTION
    )
    app.add_exception_handler(StoreTrouble, _on_store_trouble)
    for router in (batches.router, results.router, sessions.router, reports.router):
        app.include_router(router)
    describe(app, locked=bool(settings.api_keys))
    if settings.api_keys:
        setting = "ROLLWAY_DISPATCHER_API_KEY"
        app.add_middleware(BearerGate, keys=settings.api_keys, free=reports.FREE, setting=setting)
    app.add_middleware(ReportsLane)  # outermost: agents' reports carry keys of their own
    return app
