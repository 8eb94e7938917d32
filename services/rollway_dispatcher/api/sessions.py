"""``/v1/sessions``: what runs in our name at the runtimes, and ending it."""

from __future__ import annotations

from fastapi import APIRouter, Request

from rollway_dispatcher.api.batches import dispatcher_of
from rollway_dispatcher.api.examples import problems
from rollway_wire.batch import SessionView, StopSessions

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.get("", summary="Every session that is not confirmed to be gone")
async def list_sessions(request: Request) -> list[SessionView]:
    """Of all batches, also finished ones, the oldest first. A session is listed from before its runtime is asked for
    it until that runtime has confirmed its end; a restart of the dispatcher changes nothing about that."""
    return await dispatcher_of(request).sessions()


@router.post("/stop", summary="Stop some sessions, or all", responses=problems(400, 413, 422, 503))
async def stop_sessions(request: Request, wanted: StopSessions) -> list[SessionView]:
    """Cancels their rollouts, or with no ids every batch. Stopping is repeated until the runtime confirms it; the
    answer is what is still there. Ask `GET /v1/sessions` until it is empty."""
    return await dispatcher_of(request).stop_sessions(wanted.session_ids)
