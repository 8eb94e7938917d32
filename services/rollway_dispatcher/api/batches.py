"""``/v1/batches``: submit, list, inspect, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from rollway_dispatcher.api.conditional import answer
from rollway_dispatcher.api.examples import BATCH_REQUEST, BATCH_STATUS, problems
from rollway_dispatcher.dispatcher import Dispatcher
from rollway_wire.batch import BatchRequest, BatchStatus, FailureReason, RolloutView
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
LINK: dict[str, Any] = {
    "link": {"schema": {"type": "string"}, "description": "rel=next: the next page (RFC 8288); absent on the last."}
}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "To `If-None-Match`: nothing has changed."}}


def dispatcher_of(request: Request) -> Dispatcher:
    found: Dispatcher = request.state.dispatcher
    return found


def listed(request: Request, found: Sequence[BaseModel], more: int | None) -> Response:
    """A page of a list, with the `Link` to the next one."""
    body = orjson.dumps([item.model_dump(mode="json") for item in found])
    if more is None:
        return answer(request, body)
    following = request.url.include_query_params(cursor=more)
    return answer(request, body, link=f'<{following.path}?{following.query}>; rel="next"')


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


@router.get(
    "",
    response_model=list[BatchStatus],
    summary="List batches, newest first",
    responses={200: {"headers": LINK}, **NOT_MODIFIED, **problems(422)},
)
async def list_batches(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int | None, Query(ge=0, le=2**53, description="From the `Link` of the page before.")] = None,
) -> Response:
    found, more = await dispatcher_of(request).batches(limit, cursor)
    return listed(request, found, more)


@router.get(
    "/{batch_id}",
    response_model=BatchStatus,
    summary="A batch's state, counts and failures",
    responses={200: {"content": {"application/json": {"example": BATCH_STATUS}}}, **NOT_MODIFIED, **problems(404)},
)
async def batch_status(request: Request, batch_id: BatchId) -> Response:
    """State and counts as they are on disk. A cancelled batch is ``cancelling`` until its last session is stopped."""
    status = await dispatcher_of(request).status(batch_id)
    return answer(request, status.model_dump_json().encode())


@router.get(
    "/{batch_id}/failures",
    summary="Why a batch's rollouts failed, counted",
    responses=problems(404),
)
async def batch_failures(request: Request, batch_id: BatchId) -> list[FailureReason]:
    """Failed and cancelled rollouts by type and message. Messages that differ in numbers alone count as one."""
    return await dispatcher_of(request).failures(batch_id)


@router.get(
    "/{batch_id}/rollouts",
    response_model=list[RolloutView],
    summary="The rollouts of a batch as they stand",
    responses={200: {"headers": LINK}, **NOT_MODIFIED, **problems(404, 422)},
)
async def batch_rollouts(
    request: Request,
    batch_id: BatchId,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[int, Query(ge=0, le=2**53, description="From the `Link` of the page before.")] = 0,
) -> Response:
    found, more = await dispatcher_of(request).rollouts(batch_id, cursor, limit)
    return listed(request, found, more)


@router.post("/{batch_id}/cancel", summary="Cancel what is not finished", responses=problems(404, 503))
async def cancel_batch(request: Request, batch_id: BatchId) -> BatchStatus:
    """Unfinished rollouts end as ``cancelled`` and their sessions are stopped; finished results stay. Idempotent."""
    return await dispatcher_of(request).cancel(batch_id)


@router.post(
    "/{batch_id}/rollouts/{group_id}/{index}/cancel",
    summary="Cancel one rollout",
    responses=problems(404, 422, 503),
)
async def cancel_rollout(
    request: Request, batch_id: BatchId, group_id: str, index: Annotated[int, Path(ge=0, le=2**31)]
) -> RolloutView:
    """It ends as ``cancelled``, its session is stopped, and the rest of the batch goes on. A finished one stays as it
    is. Idempotent."""
    return await dispatcher_of(request).cancel_rollout(batch_id, group_id, index)
