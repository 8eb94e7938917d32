"""The admin routes of several processes: a session's go to the process it lives in, a pool's to all (`front_pools`).

What all are asked succeeds when each of them did; else the first failure is the answer, and it names the process. The
request may then be repeated: every one of these routes is safe to repeat.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from fastapi import FastAPI, Request, Response

from rollway_gateway.gateway import RECONCILE_S
from rollway_gateway.processes.accounts import Accounts
from rollway_gateway.processes.asking import Processes
from rollway_gateway.processes.front_pools import pool_routes
from rollway_gateway.processes.merging import one
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.upstream import open_upstream
from rollway_kit.app import create_app
from rollway_wire.placement import home_of
from rollway_wire.problems import BadRequest

BODY_BYTES = 4 * 2**20
_SUFFIXES = ("/trajectory", "/seal", "/traces")


def front(processes: Processes, settings: GatewaySettings) -> FastAPI:
    """The app; every route is the process's own, under the same path."""
    accounts = Accounts(processes.totals, within_s=RECONCILE_S)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s)
        inside = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        )  # fmt: skip
        async with inside as processes.http, open_upstream(settings) as engines:
            app.state.engines = engines
            watching = asyncio.create_task(_watch(accounts, engines, settings.health_interval_s))
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    app = create_app(
        "Rollway gateway", lifespan=lifespan, max_body_bytes=BODY_BYTES, body_timeout_s=settings.body_timeout_s,
        openapi_url=None,
    )  # fmt: skip
    _sessions(app, processes)
    pool_routes(app, processes, accounts)
    _whole(app, processes)
    return app


async def _watch(accounts: Accounts, engines: aiohttp.ClientSession, every_s: float) -> None:
    while True:
        await accounts.reconcile(engines, only_stale=True)
        await asyncio.sleep(every_s)


def _named(raw: bytes, ids: Iterator[str]) -> tuple[str, bytes]:
    """The session id of a request to open one, the next of ``ids`` where it has none, and the body with it."""
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as e:
        raise BadRequest(f"the body is not JSON: {e}") from e
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    session_id = str(body.get("session_id") or next(ids))
    return session_id, orjson.dumps({**body, "session_id": session_id})


def even_ids(places: Sequence[str]) -> Iterator[str]:
    """Ids of sessions to come, whose homes are ``places`` in turn."""
    for place in itertools.cycle(places):
        yield next(made for made in iter(lambda: str(uuid.uuid4()), "") if home_of(made, places) == place)


def _bare(session_id: str, suffixes: Sequence[str] = _SUFFIXES) -> str:
    found = next((s for s in suffixes if session_id.endswith(s)), "")
    return session_id.removesuffix(found)


def _sessions(app: FastAPI, processes: Processes) -> None:
    ids = even_ids(processes.places)

    @app.post("/v1/sessions")
    @app.post("/sessions")
    async def opened(request: Request) -> Response:
        session_id, body = _named(await request.body(), ids)
        return (await processes.at_home(session_id, request, body)).response()

    @app.get("/sessions")
    async def listed(request: Request) -> Response:
        limit = request.query_params.get("limit")

        def newest(bodies: list[Any]) -> Any:
            rows = sorted((row for body in bodies for row in body), key=lambda row: row["created_at"], reverse=True)
            return rows if limit is None else rows[: int(limit)]

        return one(await processes.all(request, b""), newest)

    @app.post("/sessions/batch_delete")
    async def deleted(request: Request) -> Response:
        answers = await processes.all(request, await request.body())
        return one(answers, lambda bodies: {"deleted": sum(b["deleted"] for b in bodies)})

    @app.api_route("/v1/sessions/{session_id:path}", methods=["GET", "POST", "DELETE"])
    async def own(session_id: str, request: Request) -> Response:
        suffixes = ("/trajectory",) if request.method == "GET" else ("/seal",) if request.method == "POST" else ()
        return (await processes.at_home(_bare(session_id, suffixes), request, await request.body())).response()

    @app.api_route("/sessions/{session_id:path}", methods=["GET", "DELETE"])
    async def rllm(session_id: str, request: Request) -> Response:
        suffixes = ("/traces",) if request.method == "GET" else ()
        return (await processes.at_home(_bare(session_id, suffixes), request, b"")).response()

    @app.get("/traces/{trace_id}")
    async def trace(trace_id: str, request: Request) -> Response:
        answers = await processes.all(request, b"")
        return next((a for a in answers if a.ok), answers[0]).response()

    @app.post("/traces/query")
    async def traces(request: Request) -> Response:
        answers = await processes.all(request, await request.body())
        return one(answers, lambda bodies: [trace for body in bodies for trace in body])


def _whole(app: FastAPI, processes: Processes) -> None:
    @app.get("/health")
    @app.get("/health/workers")
    @app.get("/admin/workers")
    @app.get("/admin/weight_version")
    @app.post("/admin/flush")
    @app.post("/admin/reload")
    async def same(request: Request) -> Response:
        return one(await processes.all(request, await request.body()), lambda bodies: bodies[0])
