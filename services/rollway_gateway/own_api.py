"""The gateway's own API under /v1: sessions, trajectories, pools, workers. Types in `rollway_wire.gateway`."""

from __future__ import annotations

import asyncio

import orjson
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from rollway_gateway.engine_load import loads_of
from rollway_gateway.gateway import Gateway
from rollway_gateway.journal.entries import Entry
from rollway_gateway.session import Session
from rollway_gateway.worker_address import check_worker_url
from rollway_wire.codec import MEDIA_TYPE, dump_packed, to_json_tree, trajectory_tree
from rollway_wire.gateway import (
    POOL_PATTERN,
    DrainWorker,
    FencePool,
    OpenPool,
    PausePool,
    PoolLoad,
    PoolState,
    SessionSpec,
    SessionTicket,
    WorkerSpec,
    WorkerState,
)
from rollway_wire.problems import BadRequest, NotFound
from rollway_wire.tokens import Trajectory

PoolName = Path(pattern=POOL_PATTERN)


class SessionView(BaseModel):
    """GET /v1/sessions/{id}."""

    session_id: str
    pool: str
    state: str
    """open, sealing or sealed."""
    created_at: float
    sealed_at: float | None = None
    """Unix time; None: it is not sealed, or there is no journal."""
    archived: str | None = None
    """Where its trajectory is, as a URL; then there are no counts here: they are in it."""
    calls: int | None = None
    """Begun."""
    in_flight: int = 0
    failed_calls: int | None = None
    turns: int | None = None
    incomplete_turns: int | None = None
    sampled_tokens: int | None = None
    worker_id: str | None = None


def _view(s: Session) -> SessionView:
    turns = [turn for record in s.records for turn in record.kept]
    incomplete = sum(t.incomplete is not None or not r.delivered for r in s.records for t in r.kept)
    return SessionView(
        session_id=s.session_id, pool=s.pool, state=s.state, created_at=s.created_at, calls=s.calls_begun,
        in_flight=len(s.calls), failed_calls=s.failed_calls, turns=len(turns),
        incomplete_turns=incomplete, worker_id=s.worker_id,
        sealed_at=None if s.entry is None else s.entry.sealed_at,
        sampled_tokens=sum(len(t.completion_token_ids) for t in turns) + s.lost_tokens(),
    )  # fmt: skip


def _archived(entry: Entry, where: str | None) -> SessionView:
    return SessionView(
        session_id=entry.session_id, pool=entry.pool, state=entry.state, created_at=entry.opened_at,
        sealed_at=entry.sealed_at, archived=where,
    )  # fmt: skip


async def _answer(request: Request, trajectory: Trajectory) -> Response:
    """Packed where the caller accepts it, else a JSON tree; encoded off the event loop."""
    packed = MEDIA_TYPE in request.headers.get("accept", "")

    def encode() -> bytes:
        tree = trajectory_tree(trajectory)
        return dump_packed(tree) if packed else orjson.dumps(to_json_tree(tree))

    return Response(await asyncio.to_thread(encode), media_type=MEDIA_TYPE if packed else "application/json")


def agents_base(request: Request) -> str:
    """Where agents reach this gateway: the host as the caller reached it, with the agents' port."""
    settings = _of(request).settings
    base = request.base_url
    return str(base if settings.admin_port is None else base.replace(port=settings.port))


def own_api() -> APIRouter:
    """The routes; the gateway is the app's (``app.state.gateway``)."""
    router = APIRouter(prefix="/v1", tags=["rollway"])
    _sessions(router)
    _pools(router)
    _gates(router)
    return router


def _of(request: Request) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def _sessions(router: APIRouter) -> None:
    @router.post("/sessions", status_code=201)
    async def open_session(spec: SessionSpec, request: Request, response: Response) -> SessionTicket:
        """Open a session. The same id and settings again: 200 and the same ticket; other settings: 409."""
        gateway = _of(request)
        session, new = await gateway.open_session(spec, keeps_messages=False)
        await gateway.keeping.committed()
        response.status_code = 201 if new else 200
        return gateway.ticket(session, agents_base(request))

    # Ids may hold slashes, so the routes with a suffix stand before the bare one.
    @router.get("/sessions/{session_id:path}/trajectory")
    async def trajectory(session_id: str, request: Request) -> Response:
        """What the session's finished calls make so far; after sealing, the final one."""
        return await _answer(request, await _of(request).trajectory(session_id))

    @router.post("/sessions/{session_id:path}/seal")
    async def seal(session_id: str, request: Request) -> Response:
        """Refuse further calls, cancel those in flight, return the final trajectory. Idempotent."""
        return await _answer(request, await _of(request).seal_by_id(session_id))

    @router.get("/sessions/{session_id:path}")
    async def session(session_id: str, request: Request) -> SessionView:
        """State and counts; of an archived one where it is."""
        gateway = _of(request)
        found, entry = await gateway.keeping.look(session_id), gateway.store.entry(session_id)
        if found is not None:
            return _view(found)
        if entry is None:
            raise NotFound(f"no session {session_id!r}")
        return _archived(entry, gateway.keeping.where(entry))

    @router.delete("/sessions/{session_id:path}", status_code=204)
    async def forget(session_id: str, request: Request) -> None:
        """Forget a session; further calls under its id are refused with 410."""
        gateway = _of(request)
        known = gateway.store.find(session_id) is not None or gateway.store.entry(session_id) is not None
        if not known:
            raise NotFound(f"no session {session_id!r}")
        await gateway.forget(session_id, remember=True)


def _pools(router: APIRouter) -> None:
    @router.get("/pools")
    async def pools(request: Request) -> list[PoolState]:
        gateway = _of(request)
        return [gateway.pool_state(p) for p in gateway.pools.values()]

    @router.get("/pools/{pool}")
    async def pool(request: Request, pool: str = PoolName, reconcile: bool = False) -> PoolState:
        """``reconcile``: compare tokens with the engines' counters first, where both are at rest."""
        gateway = _of(request)
        found = gateway.pool(pool)
        return await gateway.reconciled(found) if reconcile else gateway.pool_state(found)

    @router.get("/pools/{pool}/load")
    async def load(request: Request, pool: str = PoolName) -> PoolLoad:
        """Asks the engines; one that does not answer within ``health_timeout_s`` is left out."""
        gateway = _of(request)
        workers = gateway.pool(pool).workers.values()
        return PoolLoad(workers=await loads_of(gateway.client, workers, gateway.settings.health_timeout_s))

    @router.post("/pools/{pool}/workers", status_code=201)
    async def add_worker(spec: WorkerSpec, request: Request, response: Response, pool: str = PoolName) -> WorkerState:
        """Register a worker (the pool is made when it is the first). The same URL again: 200, changed."""
        gateway = _of(request)
        try:
            check_worker_url(spec.url, allow_link_local=gateway.settings.allow_link_local_workers)
        except ValueError as e:
            raise BadRequest(f"url: {e}") from e
        worker, new = await gateway.add_worker(gateway.ensure_pool(pool), spec)
        response.status_code = 201 if new else 200
        return worker.state()

    @router.delete("/pools/{pool}/workers/{worker_id}", status_code=204)
    async def remove_worker(worker_id: str, request: Request, pool: str = PoolName) -> None:
        gateway = _of(request)
        gateway.pool(pool).remove_worker(worker_id)
        await gateway.keep_pools()

    @router.post("/pools/{pool}/workers/{worker_id}/drain")
    async def drain_worker(body: DrainWorker, worker_id: str, request: Request, pool: str = PoolName) -> WorkerState:
        """No new calls to a worker: sessions move, and those in flight end there. Idempotent."""
        gateway = _of(request)
        return await gateway.drain(gateway.pool(pool).worker(worker_id), body)


def _gates(router: APIRouter) -> None:
    @router.post("/pools/{pool}/open")
    async def open_pool(body: OpenPool, request: Request, pool: str = PoolName) -> PoolState:
        """Accept calls, stamped with this policy version."""
        gateway = _of(request)
        found = gateway.ensure_pool(pool)
        found.open(body.policy_version)
        await gateway.keep_pools()
        return gateway.pool_state(found)

    @router.post("/pools/{pool}/pause")
    async def pause_pool(body: PausePool, request: Request, pool: str = PoolName) -> PoolState:
        """Hold or refuse new calls; drain or abort those in flight, which go on when the pool is opened."""
        gateway = _of(request)
        return await gateway.pause(gateway.pool(pool), body)

    @router.post("/pools/{pool}/fence")
    async def fence_pool(body: FencePool, request: Request, pool: str = PoolName) -> PoolState:
        """Refuse new calls and drain those in flight."""
        gateway = _of(request)
        return await gateway.fence(gateway.pool(pool), body)
