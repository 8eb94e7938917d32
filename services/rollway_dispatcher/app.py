"""The dispatcher's HTTP app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from fastapi import FastAPI

from rollway_dispatcher.api import batches, reports, results, sessions
from rollway_dispatcher.dispatcher import Dispatcher, open_dispatcher
from rollway_dispatcher.settings import DispatcherSettings
from rollway_kit.app import create_app
from rollway_kit.bearer import BearerGate
from rollway_wire.batch import BatchRequest

DESCRIPTION = """\
Post a batch of inputs; rollouts run where `runtime` says; rewards and tokens come back joined, each result once.
Errors are RFC 9457 `application/problem+json`.
"""


class State(TypedDict):
    dispatcher: Dispatcher


def create(settings: DispatcherSettings, on_crash: Callable[[], None] = lambda: None) -> FastAPI:
    """The app; its lifespan opens the state, S3, the gateway and the runtimes and runs the engine.

    ``on_crash`` is called when a bug has ended the engine: the process should end, and be started again.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        async with open_dispatcher(settings, on_crash) as dispatcher:
            yield {"dispatcher": dispatcher}

    app = create_app(
        "Rollway dispatcher", lifespan=lifespan, max_body_bytes=settings.max_body_bytes, description=DESCRIPTION
    )
    for router in (batches.router, results.router, sessions.router, reports.router):
        app.include_router(router)
    _describe_body(app)
    if settings.api_keys:
        setting = "ROLLWAY_DISPATCHER_API_KEY"
        app.add_middleware(BearerGate, keys=settings.api_keys, free=reports.FREE, setting=setting)
    return app


def _describe_body(app: FastAPI) -> None:
    """Put BatchRequest into the OpenAPI components: its route parses the body itself, so FastAPI does not know it."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            model = BatchRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            schema["components"]["schemas"] |= {**model.pop("$defs"), "BatchRequest": model}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # FastAPI's documented way to extend the schema
