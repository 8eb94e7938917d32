"""The admin routes of several processes: a session's go to the process it lives in, a pool's to all.

What all are asked succeeds when each of them did; else the first failure is the answer, and it names the process. The
request may then be repeated: every one of these routes is safe to repeat.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, TypeAdapter
from yarl import URL

from rollway_gateway.processes import merged
from rollway_gateway.settings import GatewaySettings
from rollway_kit.app import create_app, problem_response
from rollway_wire.gateway import PoolState, WorkerState
from rollway_wire.placement import home_of
from rollway_wire.problems import BadRequest, Unavailable

BODY_BYTES = 4 * 2**20
_KEPT = ("accept", "content-type", "authorization", "host")
_SUFFIXES = ("/trajectory", "/seal", "/traces")
_POOLS = TypeAdapter(list[PoolState])


@dataclass(frozen=True, slots=True)
class Answer:
    process: int
    status: int
    content_type: str
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < 400

    def response(self) -> Response:
        return Response(self.body, self.status, media_type=self.content_type or None)


@dataclass
class Remembered:
    """What was told to all and a process that starts again must be told anew: workers, then gates, by path."""

    workers: dict[str, bytes] = field(default_factory=dict)
    gates: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def take(self, method: str, path: str, body: bytes) -> None:
        pool, _, what = path.rpartition("/")
        if method == "DELETE":
            self.workers = {k: v for k, v in self.workers.items() if k != path}
        elif what in ("open", "pause", "fence"):
            self.gates[pool] = (path, body)
        elif what == "workers":
            self.workers[f"{path}/{orjson.loads(body)['worker_id']}"] = body
        elif what == "weight_version":
            self.gates[path] = (path, body)

    def calls(self) -> list[tuple[str, bytes]]:
        return [(name.rpartition("/")[0], body) for name, body in self.workers.items()] + list(self.gates.values())


class Processes:
    """The processes' own admin listeners."""

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._urls = urls
        self._auth = {"authorization": f"Bearer {key}"}
        self._places = [str(k) for k in range(len(urls))]
        self.remembered = Remembered()
        self.http: aiohttp.ClientSession | None = None

    async def ask(
        self, process: int, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Raises:
        Unavailable: it does not answer: it has ended and is being started again."""
        assert self.http is not None
        url = URL(self._urls[process] + target, encoded=True)
        try:
            async with self.http.request(
                method, url, data=body or None, headers={**(headers or {}), **self._auth}, allow_redirects=False
            ) as answer:
                kind = answer.headers.get("content-type", "")
                return Answer(process, answer.status, kind, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise Unavailable(f"process {process} does not answer: {type(e).__name__}", retry_after_s=1) from e

    async def at_home(self, session_id: str, request: Request, body: bytes) -> Answer:
        place = int(home_of(session_id, self._places))
        return await self.ask(place, request.method, _target(request), body, _kept(request))

    async def all(self, request: Request, body: bytes) -> list[Answer]:
        """Every process's answer, in order.

        Raises:
            Unavailable: one does not answer; the others were asked all the same.
        """
        asked = [self.ask(k, request.method, _target(request), body, _kept(request)) for k in range(len(self._places))]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [a for a in answers if isinstance(a, Answer)]

    async def remind(self, process: int) -> None:
        """Tell a process that started again what all were told."""
        for path, body in self.remembered.calls():
            await self.ask(process, "POST", path, body, {"content-type": "application/json"})


def _target(request: Request) -> str:
    raw: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


def _kept(request: Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _KEPT if name in request.headers}


def front(processes: Processes, settings: GatewaySettings) -> FastAPI:
    """The app; every route is the process's own, under the same path."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        ) as http:
            processes.http = http
            yield

    app = create_app(
        "Rollway gateway", lifespan=lifespan, max_body_bytes=BODY_BYTES, body_timeout_s=settings.body_timeout_s,
        openapi_url=None,
    )  # fmt: skip
    _sessions(app, processes)
    _pools(app, processes)
    _whole(app, processes)
    return app


def _named(raw: bytes) -> tuple[str, bytes]:
    """The session id of a request to open one, chosen here where it has none, and the body with it."""
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as e:
        raise BadRequest(f"the body is not JSON: {e}") from e
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    session_id = str(body.get("session_id") or uuid.uuid4())
    return session_id, orjson.dumps({**body, "session_id": session_id})


def _bare(session_id: str, suffixes: Sequence[str] = _SUFFIXES) -> str:
    found = next((s for s in suffixes if session_id.endswith(s)), "")
    return session_id.removesuffix(found)


def _sessions(app: FastAPI, processes: Processes) -> None:
    @app.post("/v1/sessions")
    @app.post("/sessions")
    async def opened(request: Request) -> Response:
        session_id, body = _named(await request.body())
        return (await processes.at_home(session_id, request, body)).response()

    @app.get("/sessions")
    async def listed(request: Request) -> Response:
        rows = [row for a in await processes.all(request, b"") for row in orjson.loads(a.body)]
        rows.sort(key=lambda row: row["created_at"], reverse=True)
        limit = request.query_params.get("limit")
        return _json(rows if limit is None else rows[: int(limit)])

    @app.post("/sessions/batch_delete")
    async def deleted(request: Request) -> Response:
        answers = await processes.all(request, await request.body())
        return _one(answers, lambda bodies: {"deleted": sum(b["deleted"] for b in bodies)})

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
        return _one(answers, lambda bodies: [trace for body in bodies for trace in body])


def _pools(app: FastAPI, processes: Processes) -> None:
    @app.get("/v1/pools")
    async def pools(request: Request) -> Response:
        answers = await processes.all(request, b"")
        return _one(answers, lambda bodies: _dumped(merged.pools(map(_POOLS.validate_python, bodies))))

    @app.get("/v1/pools/{pool}")
    async def pool(pool: str, request: Request) -> Response:
        return _one(await processes.all(request, b""), _merged_pool)

    @app.get("/v1/pools/{pool}/load")
    async def load(pool: str, request: Request) -> Response:
        # All ask the same engines; what a process that is starting cannot say, another can.
        answers = await processes.all(request, b"")
        return next((a for a in answers if a.ok), answers[0]).response()

    @app.post("/v1/pools/{pool}/{gate}")
    async def told(pool: str, gate: str, request: Request) -> Response:
        body = await request.body()
        if gate == "workers":
            return await _add(processes, request, body, _merged_worker)
        answers = await processes.all(request, body)
        return _remembered(processes, request, body, answers, _merged_pool)

    @app.post("/admin/workers")
    async def added(request: Request) -> Response:
        return await _add(processes, request, await request.body(), lambda bodies: bodies[0])

    @app.delete("/v1/pools/{pool}/workers/{worker_id}")
    @app.delete("/admin/workers/{worker_id}")
    async def removed(request: Request) -> Response:
        answers = await processes.all(request, b"")
        processes.remembered.take("DELETE", request.url.path, b"")
        return next((a for a in answers if a.ok), answers[0]).response()

    @app.post("/admin/weight_version")
    async def version(request: Request) -> Response:
        body = await request.body()
        return _remembered(processes, request, body, await processes.all(request, body), lambda bodies: bodies[0])


def _whole(app: FastAPI, processes: Processes) -> None:
    @app.get("/health")
    @app.get("/health/workers")
    @app.get("/admin/workers")
    @app.get("/admin/weight_version")
    @app.post("/admin/flush")
    @app.post("/admin/reload")
    async def same(request: Request) -> Response:
        return _one(await processes.all(request, await request.body()), lambda bodies: bodies[0])


async def _add(processes: Processes, request: Request, raw: bytes, merge: Callable[[list[Any]], Any]) -> Response:
    """A worker has one id everywhere: the given one, else one that its URL decides."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict) and body.get("worker_id") is None and isinstance(body.get("url"), str):
        where = f"{body['url'].rstrip('/')} {body.get('api_path') or ''}"
        raw = orjson.dumps({**body, "worker_id": f"w-{hashlib.sha256(where.encode()).hexdigest()[:12]}"})
    return _remembered(processes, request, raw, await processes.all(request, raw), merge)


def _remembered(
    processes: Processes, request: Request, body: bytes, answers: list[Answer], merge: Callable[[list[Any]], Any]
) -> Response:
    if all(a.ok for a in answers):
        processes.remembered.take("POST", request.url.path, body)
    return _one(answers, merge)


def _one(answers: list[Answer], merge: Callable[[list[Any]], Any]) -> Response:
    failed = next((a for a in answers if not a.ok), None)
    if failed is None:
        response = _json(merge([orjson.loads(a.body) for a in answers]))
        response.status_code = max(a.status for a in answers)
        return response
    if failed.status >= 500 or any(a.ok for a in answers):
        said = failed.body[:500].decode(errors="replace")
        detail = f"process {failed.process} of {len(answers)} answered {failed.status}: {said}"
        return problem_response(Unavailable(f"{detail}; others may have done it: ask again", retry_after_s=1))
    return failed.response()


def _merged_pool(bodies: list[Any]) -> Any:
    return _dumped(merged.pool([PoolState.model_validate(b) for b in bodies]))


def _merged_worker(bodies: list[Any]) -> Any:
    return _dumped(merged.worker([WorkerState.model_validate(b) for b in bodies]))


def _dumped(value: BaseModel | list[PoolState]) -> Any:
    return [v.model_dump() for v in value] if isinstance(value, list) else value.model_dump()


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
