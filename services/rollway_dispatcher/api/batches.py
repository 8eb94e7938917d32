"""``/v1/batches``: submit, list, inspect, cancel."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from rollway_dispatcher.api.examples import BATCH_REQUEST, BATCH_STATUS, problems
from rollway_dispatcher.dispatcher import Dispatcher
from rollway_wire.batch import BatchRequest, BatchStatus, RolloutView
from rollway_wire.problems import BadRequest, Unprocessable

router = APIRouter(prefix="/v1/batches", tags=["batches"])

BatchId = Annotated[str, Path(description="As answered by POST /v1/batches.", examples=["b3f9c2d41a7e8050"])]
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/BatchRequest"}, "example": BATCH_REQUEST}
        },
    }
}


def dispatcher_of(request: Request) -> Dispatcher:
    found: Dispatcher = request.state.dispatcher
    return found


def _parse(raw: bytes) -> BatchRequest:
    """Strict JSON (no NaN), then the model.

    Raises:
        BadRequest: not JSON.
        Unprocessable: not a BatchRequest; ``errors`` says where.
    """
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as e:
        raise BadRequest(f"the body is not JSON: {e}") from e
    try:
        return BatchRequest.model_validate(value)
    except ValidationError as e:
        errors = [{"where": "/".join(map(str, item["loc"])) or "body", "message": item["msg"]} for item in e.errors()]
        detail = f"{errors[0]['where']}: {errors[0]['message']}"
        raise Unprocessable(detail, errors=errors[:20]) from e


@router.post(
    "",
    status_code=201,
    response_model=BatchStatus,
    summary="Submit a batch of rollouts",
    openapi_extra=_BODY,
    responses={
        201: {"description": "Accepted and on disk.", "content": {"application/json": {"example": BATCH_STATUS}}},
        200: {"model": BatchStatus, "description": "The same Idempotency-Key and body: the batch it made."},
        **problems(400, 403, 409, 413, 422, 503),
    },
)
async def submit_batch(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="Send the same key to repeat a submit whose answer was lost: no second batch is made.",
        ),
    ] = None,
) -> Response:
    """Take a batch. Once this answers, the batch survives a crash; its rollouts start as the budgets allow."""
    batch = _parse(await request.body())
    status, created = await dispatcher_of(request).submit(batch, idempotency_key)
    headers = {"location": f"/v1/batches/{status.batch_id}"}
    return JSONResponse(status.model_dump(mode="json"), 201 if created else 200, headers)


@router.get("", summary="List batches, newest first", responses=problems(422))
async def list_batches(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[BatchStatus]:
    return await dispatcher_of(request).batches(limit)


@router.get(
    "/{batch_id}",
    summary="A batch's state, counts and failures",
    responses={200: {"content": {"application/json": {"example": BATCH_STATUS}}}, **problems(404)},
)
async def batch_status(request: Request, batch_id: BatchId) -> BatchStatus:
    """State and counts as they are on disk. A cancelled batch is ``cancelling`` until its last session is stopped."""
    return await dispatcher_of(request).status(batch_id)


@router.get("/{batch_id}/rollouts", summary="Every rollout of a batch as it stands", responses=problems(404))
async def batch_rollouts(request: Request, batch_id: BatchId) -> list[RolloutView]:
    return await dispatcher_of(request).rollouts(batch_id)


@router.post("/{batch_id}/cancel", summary="Cancel what is not finished", responses=problems(404, 503))
async def cancel_batch(request: Request, batch_id: BatchId) -> BatchStatus:
    """Unfinished rollouts end as ``cancelled`` and their sessions are stopped; finished results stay. Idempotent."""
    return await dispatcher_of(request).cancel(batch_id)
