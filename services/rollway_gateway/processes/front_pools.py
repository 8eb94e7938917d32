"""The admin routes of pools, over all processes: told to all, noted for one that starts again, answered as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter, ValidationError

from rollway_gateway.own_api import PoolName
from rollway_gateway.processes import merged
from rollway_gateway.processes.accounts import Accounts
from rollway_gateway.processes.asking import Answer, Processes
from rollway_gateway.processes.merging import one
from rollway_gateway.processes.told import Told, Undo
from rollway_wire.gateway import DEFAULT_POOL, PoolState, WorkerSpec, WorkerState
from rollway_wire.problems import NotFound

_POOLS = TypeAdapter(list[PoolState])
_GATES: dict[str, Callable[[Told, str, dict[str, Any]], Undo]] = {
    "open": lambda told, pool, body: told.opened(pool, _version(body, "policy_version")),
    "pause": lambda told, pool, body: told.paused(pool, refuses=body.get("new_calls") == "refuse"),
    "fence": lambda told, pool, body: told.fenced(pool),
}


def pool_routes(app: FastAPI, processes: Processes, accounts: Accounts) -> None:
    _looks(app, processes, accounts)
    _gates(app, processes, accounts)
    _workers(app, processes, accounts)


async def _all(processes: Processes, request: Request, body: bytes, undo: Undo) -> list[Answer]:
    """Every process's answer to what was noted as told to all; what none of them took is taken back."""
    answers = await processes.all(request, body)
    if not any(a.ok for a in answers):
        undo()
    return answers


def _looks(app: FastAPI, processes: Processes, accounts: Accounts) -> None:
    @app.get("/v1/pools")
    async def pools(request: Request) -> Response:
        answers = await processes.all(request, b"")
        await accounts.refresh()

        def merge(bodies: list[Any]) -> Any:
            states = merged.pools(map(_POOLS.validate_python, bodies), accounts.ledgers)
            return [state.model_dump() for state in states]

        return one(answers, merge)

    @app.get("/v1/pools/{pool}")
    async def pool(request: Request, pool: str = PoolName, reconcile: bool = False) -> Response:
        if reconcile:
            await accounts.reconcile(request.app.state.engines)
        else:
            await accounts.refresh()
        return one(await processes.all(request, b""), _whole_pool(accounts))

    @app.get("/v1/pools/{pool}/load")
    async def load(request: Request, pool: str = PoolName) -> Response:
        # All ask the same engines; what a process that is starting cannot say, another can.
        answers = await processes.all(request, b"")
        return next((a for a in answers if a.ok), answers[0]).response()


def _gates(app: FastAPI, processes: Processes, accounts: Accounts) -> None:
    @app.post("/v1/pools/{pool}/{gate}")
    async def told(gate: str, request: Request, pool: str = PoolName) -> Response:
        if gate == "workers":
            return await _add(processes, request, pool, _whole_worker(accounts, pool), accounts)
        note = _GATES.get(gate)
        if note is None:
            raise NotFound(f"no route {request.url.path}")
        raw = await request.body()
        answers = await _all(processes, request, raw, note(processes.told, pool, _object(raw)))
        if gate != "open":
            await accounts.reconcile(request.app.state.engines)
        return one(answers, _whole_pool(accounts))

    @app.post("/admin/weight_version")
    async def version(request: Request) -> Response:
        raw = await request.body()
        undo = processes.told.version(DEFAULT_POOL, _version(_object(raw), "weight_version"))
        return one(await _all(processes, request, raw, undo), lambda bodies: bodies[0])


def _workers(app: FastAPI, processes: Processes, accounts: Accounts) -> None:
    @app.post("/admin/workers")
    async def added(request: Request) -> Response:
        return await _add(processes, request, DEFAULT_POOL, lambda bodies: bodies[0], accounts)

    @app.delete("/v1/pools/{pool}/workers/{worker_id}")
    async def removed(worker_id: str, request: Request, pool: str = PoolName) -> Response:
        return await _remove(processes, request, pool, worker_id)

    @app.delete("/admin/workers/{worker_id}")
    async def removed_by_rllm(worker_id: str, request: Request) -> Response:
        return await _remove(processes, request, DEFAULT_POOL, worker_id)

    @app.post("/v1/pools/{pool}/workers/{worker_id}/drain")
    async def drained(worker_id: str, request: Request, pool: str = PoolName) -> Response:
        raw, undo = await request.body(), processes.told.drained(pool, worker_id)
        return one(await _all(processes, request, raw, undo), _whole_worker(accounts, pool))


async def _add(
    processes: Processes, request: Request, pool: str, merge: Callable[[list[Any]], Any], accounts: Accounts
) -> Response:
    """A worker has one id everywhere: the given one, else one that its URL decides."""
    raw = await request.body()
    body = _object(raw)
    if body.get("worker_id") is None and isinstance(body.get("url"), str):
        where = f"{body['url'].rstrip('/')} {body.get('api_path') or ''}"
        body["worker_id"] = f"w-{hashlib.sha256(where.encode()).hexdigest()[:12]}"
        raw = orjson.dumps(body)
    answers = await _all(processes, request, raw, _noted(processes.told, pool, body))
    await accounts.reconcile(request.app.state.engines, only_stale=True)  # before its first call
    return one(answers, merge)


def _noted(told: Told, pool: str, body: dict[str, Any]) -> Undo:
    """What a process could not use is not noted: one that starts again must not fail over it."""
    try:
        spec = WorkerSpec(**{name: body[name] for name in WorkerSpec.model_fields if name in body})
    except ValidationError:
        return lambda: None
    path = body.get("api_path")
    return told.worker(pool, {**spec.model_dump(), "api_path": path if isinstance(path, str) else None})


async def _remove(processes: Processes, request: Request, pool: str, worker_id: str) -> Response:
    answers = await _all(processes, request, b"", processes.told.removed(pool, worker_id))
    return next((a for a in answers if a.ok), answers[0]).response()


def _whole_pool(accounts: Accounts) -> Callable[[list[Any]], Any]:
    return lambda bodies: merged.pool([PoolState.model_validate(b) for b in bodies], accounts.ledgers).model_dump()


def _whole_worker(accounts: Accounts, pool: str) -> Callable[[list[Any]], Any]:
    def merge(bodies: list[Any]) -> Any:
        states = [WorkerState.model_validate(b) for b in bodies]
        return merged.worker(states, accounts.ledgers(pool).get(states[0].worker_id)).model_dump()

    return merge


def _object(raw: bytes) -> dict[str, Any]:
    """The JSON object sent; an empty one where it is none, which the processes themselves will refuse."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _version(body: dict[str, Any], name: str) -> int | None:
    """As the processes read it; None where there is none, or none that they will take."""
    try:
        return int(body[name])
    except (KeyError, TypeError, ValueError):
        return None
