"""rllm-model-gateway's HTTP API (its main branch), on the pool ``default``: same paths, bodies, statuses, error shape.

Two things are deliberately not the same. A worker is checked when it is added, so one that cannot be reached is listed
as unhealthy at once. And a session whose id an agent's URL could not carry is refused with 400.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from rollway_gateway.gateway import Gateway
from rollway_gateway.pool import Pool
from rollway_gateway.session import Session
from rollway_gateway.traces import trace, traces
from rollway_gateway.worker import Worker
from rollway_gateway.worker_address import check_worker_url
from rollway_kit.keys import scrub
from rollway_wire.gateway import DEFAULT_POOL, SessionSpec, WorkerSpec
from rollway_wire.problems import NotFound, RollwayError

_API_PATH = re.compile(r"[A-Za-z0-9/._~-]{0,256}")


def rllm_api() -> APIRouter:
    """The routes; the gateway is the app's (``app.state.gateway``)."""
    router = APIRouter(tags=["rllm-model-gateway"])
    _health(router)
    _sessions(router)
    _traces(router)
    _workers(router)
    _admin(router)
    return router


def _of(request: Request) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def _pool(request: Request) -> Pool:
    return _of(request).pool(DEFAULT_POOL)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object sent, or an empty one, as that gateway reads bodies."""
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": scrub(message)}, status)


def _worker(w: Worker) -> dict[str, Any]:
    return w.state().model_dump(exclude={"detail"})


def _health(router: APIRouter) -> None:
    @router.get("/health")
    async def health(request: Request, response: Response) -> dict[str, str]:
        """503 while nothing can be kept: new calls are refused."""
        if (problem := _of(request).keeping.problem) is not None:
            response.status_code = 503
            return {"status": "failing", "detail": problem}
        return {"status": "ok"}

    @router.get("/health/workers")
    async def health_workers(request: Request) -> dict[str, Any]:
        workers = list(_pool(request).workers.values())
        return {
            "workers": [_worker(w) for w in workers],
            "healthy": sum(w.healthy for w in workers),
            "total": len(workers),
        }


def _session_info(s: Session) -> dict[str, Any]:
    count = sum(r.answered for r in s.records)
    return {"session_id": s.session_id, "trace_count": count, "created_at": s.created_at, "metadata": s.metadata}


async def _delete(gateway: Gateway, session_id: str) -> int:
    session = await gateway.forget(session_id, remember=False)
    if session is None:
        return 0
    count: int = _session_info(session)["trace_count"]
    return count


async def _all(gateway: Gateway) -> list[Session]:
    """To look at, wherever they are kept."""
    ids = [s.session_id for s in gateway.store] + [entry.session_id for entry in gateway.store.stored()]
    return [s for session_id in ids if (s := await gateway.keeping.look(session_id)) is not None]


def _sessions(router: APIRouter) -> None:
    @router.post("/sessions")
    async def create_session(request: Request) -> Any:
        gateway, body = _of(request), await _body(request)
        session_id = str(body.get("session_id") or uuid.uuid4())
        metadata, sampling = body.get("metadata") or {}, body.get("sampling_params") or {}
        try:
            found = await gateway.find(session_id)
            if found is not None:
                gateway.store.change(found, metadata, sampling)
            else:
                spec = SessionSpec(session_id=session_id, metadata=metadata, sampling_params=sampling)
                found, _ = await gateway.open_session(spec, keeps_messages=True)
            await gateway.keeping.committed()
        except (RollwayError, ValidationError) as e:
            return _error(400, str(e))
        url = gateway.agent_path(found) if gateway.keys.required else f"/sessions/{session_id}/v1"
        return {"session_id": session_id, "url": url}

    @router.get("/sessions")
    async def list_sessions(request: Request, since: float | None = None, limit: int | None = None) -> Any:
        known = await _all(_of(request))
        first = {s.session_id: min(r.kept[0].ended_at for r in s.records if r.answered)
                 for s in known if any(r.answered for r in s.records)}  # fmt: skip
        rows = [s for s in known if s.session_id in first]
        rows = [s for s in rows if since is None or first[s.session_id] >= since]
        rows.sort(key=lambda s: first[s.session_id], reverse=True)
        return [_session_info(s) for s in (rows if limit is None else rows[:limit])]

    @router.post("/sessions/batch_delete")
    async def batch_delete(request: Request) -> dict[str, int]:
        gateway, body = _of(request), await _body(request)
        return {"deleted": sum([await _delete(gateway, str(sid)) for sid in body.get("session_ids") or []])}

    # Ids may hold slashes, so this stands before the bare route.
    @router.get("/sessions/{session_id:path}/traces")
    async def session_traces(
        session_id: str, request: Request, since: float | None = None, limit: int | None = None
    ) -> Any:
        session = await _of(request).keeping.look(session_id)
        return [] if session is None else traces(session, since, limit)

    @router.get("/sessions/{session_id:path}")
    async def get_session(session_id: str, request: Request) -> Any:
        session = await _of(request).keeping.look(session_id)
        return _error(404, f"Session {session_id} not found") if session is None else _session_info(session)

    @router.delete("/sessions/{session_id:path}")
    async def delete_session(session_id: str, request: Request) -> dict[str, int]:
        return {"deleted": await _delete(_of(request), session_id)}


def _traces(router: APIRouter) -> None:
    @router.get("/traces/{trace_id}")
    async def get_trace(trace_id: str, request: Request) -> Any:
        gateway = _of(request)
        session_id = gateway.store.session_of_call(trace_id)
        session = None if session_id is None else await gateway.keeping.look(session_id)
        found = next((r for r in session.records if r.call_id == trace_id), None) if session is not None else None
        if session is None or found is None:
            return _error(404, f"Trace {trace_id} not found")
        return trace(session, found)

    @router.post("/traces/query")
    async def query_traces(request: Request) -> Any:
        keeping, body = _of(request).keeping, await _body(request)
        found = [s for sid in body.get("session_ids") or [] if (s := await keeping.look(str(sid))) is not None]
        return [t for s in found for t in traces(s, body.get("since"), body.get("limit"))]


def _workers(router: APIRouter) -> None:
    @router.post("/admin/workers")
    async def add_worker(request: Request) -> Any:
        gateway, body = _of(request), await _body(request)
        url, api_path = body.get("url"), body.get("api_path")
        if not url:
            return _error(400, "url is required")
        if not isinstance(url, str):
            return _error(400, "url must be a string")
        if api_path is not None and not (isinstance(api_path, str) and _API_PATH.fullmatch(api_path)):
            return _error(400, "api_path must be a URL path")
        try:
            check_worker_url(url, allow_link_local=gateway.settings.allow_link_local_workers)
            spec = WorkerSpec(
                url=url, worker_id=body.get("worker_id"), model_name=body.get("model_name"),
                weight=body.get("weight", 1),
            )  # fmt: skip
            worker, _ = await gateway.add_worker(gateway.pool(DEFAULT_POOL), spec, api_path)
        except (RollwayError, ValueError) as e:
            return _error(400, str(e))
        return {"worker_id": worker.worker_id, "url": worker.url, "api_path": worker.api_path}

    @router.delete("/admin/workers/{worker_id}")
    async def remove_worker(worker_id: str, request: Request) -> Any:
        try:
            _pool(request).remove_worker(worker_id)
            await _of(request).keep_pools()
        except NotFound:
            return _error(404, f"Worker {worker_id} not found")
        return {"removed": worker_id}

    @router.get("/admin/workers")
    async def list_workers(request: Request) -> Any:
        return [_worker(w) for w in _pool(request).workers.values()]


def _admin(router: APIRouter) -> None:
    @router.post("/admin/flush")
    async def flush() -> dict[str, str]:
        """A call is recorded before its answer ends, so there is never anything to flush."""
        return {"status": "flushed"}

    @router.post("/admin/reload")
    async def reload() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/admin/weight_version")
    async def weight_version(request: Request) -> dict[str, int | None]:
        return {"weight_version": _pool(request).policy_version}

    @router.post("/admin/weight_version")
    async def set_weight_version(request: Request) -> Any:
        version = (await _body(request)).get("weight_version")
        if version is None:
            return _error(400, "weight_version is required")
        try:
            _pool(request).policy_version = int(version)
        except (TypeError, ValueError):
            return _error(400, f"invalid weight_version: {version!r}")
        await _of(request).keep_pools()
        return {"weight_version": _pool(request).policy_version}
