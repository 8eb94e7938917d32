"""``POST /v1/reports`` (from agents) and ``GET /health``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from rollway_dispatcher.api.batches import dispatcher_of
from rollway_dispatcher.api.examples import problems
from rollway_wire.problems import Unauthorized
from rollway_wire.rollout import Report

FREE = frozenset({"/v1/reports", "/health"})
"""What needs no key of the dispatcher's: agents have one of their own, and health tells nothing."""
router = APIRouter(tags=["service"])
_bearer = HTTPBearer(auto_error=False, description="The key in `_rollout.report.key`: it reports for one session only.")


@router.post("/v1/reports", status_code=204, summary="An agent reports", responses=problems(400, 401, 413, 422))
async def take_report(
    request: Request, report: Report, key: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Sign of life (``started``, ``heartbeat``) or news that the result is in S3 (``done``). A session that is over is
    answered 204 too: there is nothing its agent should do about it."""
    if key is None:
        raise Unauthorized("send Authorization: Bearer with the key of _rollout.report")
    dispatcher_of(request).report(report, key.credentials)


@router.get("/health", summary="Whether the dispatcher makes progress", responses=problems(503))
async def health(request: Request) -> dict[str, str | float | None]:
    """``lag_p99_ms``: from when something is known (a report, a receipt, a collected result) to when what follows from
    it has begun, milliseconds, the slowest hundredth of the last ten seconds; null where nothing happened."""
    dispatcher = dispatcher_of(request)
    dispatcher.check()
    return {"status": "ok", "lag_p99_ms": dispatcher.lag_p99_ms()}
