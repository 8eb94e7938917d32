"""The gateway's own API as `Call` values; see docs/architecture.md for the routes."""

from __future__ import annotations

from typing import Any

from rollway_driver.client.call import ANSWER_TIMEOUT_S, Call, json_body, model, models, nothing, segment
from rollway_wire.codec import MEDIA_TYPE, load_trajectory
from rollway_wire.gateway import (
    DrainWorker,
    FencePool,
    OpenPool,
    PausePool,
    PoolState,
    SessionSpec,
    SessionTicket,
    WorkerSpec,
    WorkerState,
)
from rollway_wire.tokens import Trajectory

SEAL_TIMEOUT_S = 120.0
"""Sealing cancels calls in flight and cuts a long session into sequences."""


def _pool(name: str) -> str:
    return f"/v1/pools/{segment(name)}"


def _session(session_id: str) -> str:
    return f"/v1/sessions/{segment(session_id)}"


def pools() -> Call[list[PoolState]]:
    return Call("GET", "/v1/pools", models(PoolState))


def pool(name: str) -> Call[PoolState]:
    return Call("GET", _pool(name), model(PoolState))


def add_worker(name: str, spec: WorkerSpec) -> Call[WorkerState]:
    return Call("POST", f"{_pool(name)}/workers", model(WorkerState), content=json_body(spec))


def remove_worker(name: str, worker_id: str) -> Call[None]:
    return Call("DELETE", f"{_pool(name)}/workers/{segment(worker_id)}", nothing)


def open_pool(name: str, spec: OpenPool) -> Call[PoolState]:
    return Call("POST", f"{_pool(name)}/open", model(PoolState), content=json_body(spec))


def fence_pool(name: str, spec: FencePool) -> Call[PoolState]:
    timeout_s = spec.drain_timeout_s + ANSWER_TIMEOUT_S
    return Call("POST", f"{_pool(name)}/fence", model(PoolState), content=json_body(spec), timeout_s=timeout_s)


def drain_worker(name: str, worker_id: str, spec: DrainWorker) -> Call[WorkerState]:
    path, timeout_s = f"{_pool(name)}/workers/{segment(worker_id)}/drain", spec.timeout_s + ANSWER_TIMEOUT_S
    return Call("POST", path, model(WorkerState), content=json_body(spec), timeout_s=timeout_s)


def pause_pool(name: str, spec: PausePool) -> Call[PoolState]:
    timeout_s = 2 * spec.timeout_s + ANSWER_TIMEOUT_S  # the workers' own aborting, then the wait
    return Call("POST", f"{_pool(name)}/pause", model(PoolState), content=json_body(spec), timeout_s=timeout_s)


def open_session(spec: SessionSpec) -> Call[SessionTicket]:
    return Call("POST", "/v1/sessions", model(SessionTicket), content=json_body(spec))


def session(session_id: str) -> Call[dict[str, Any]]:
    return Call("GET", _session(session_id), dict)


def forget_session(session_id: str) -> Call[None]:
    return Call("DELETE", _session(session_id), nothing)


def trajectory(session_id: str) -> Call[Trajectory]:
    return Call("GET", f"{_session(session_id)}/trajectory", load_trajectory, headers={"accept": MEDIA_TYPE})


def seal(session_id: str) -> Call[Trajectory]:
    headers = {"accept": MEDIA_TYPE}
    return Call("POST", f"{_session(session_id)}/seal", load_trajectory, headers=headers, timeout_s=SEAL_TIMEOUT_S)


def health() -> Call[None]:
    return Call("GET", "/health", nothing)
