"""``/v1/batches/{batch_id}/results``: what has finished, in the order it did."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rollway_dispatcher.api.batches import BatchId, dispatcher_of
from rollway_dispatcher.api.examples import RESULTS_PAGE, problems
from rollway_wire.batch import ResultsPage
from rollway_wire.codec import MEDIA_TYPE

router = APIRouter(prefix="/v1/batches", tags=["results"])


@router.get(
    "/{batch_id}/results",
    response_model=ResultsPage,
    summary="Results in the order they finished, by cursor, with long-poll",
    responses={
        200: {
            "description": "One page; by `Accept: application/vnd.rollway.packed` the same tree with binary arrays.",
            "content": {
                "application/json": {"example": RESULTS_PAGE},
                MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **problems(404, 422),
    },
)
async def batch_results(
    request: Request,
    batch_id: BatchId,
    cursor: Annotated[int, Query(ge=0, le=2**53, description="0, or the last page's cursor.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most results a page.")] = 100,
    wait_s: Annotated[float, Query(ge=0, le=60, description="How long to wait for the first result.")] = 0.0,
) -> Response:
    """Every rollout gives exactly one result, also one that failed or was cancelled. The same cursor gives the same
    results again, so a page whose answer was lost is not lost. ``finished`` is true on the last page. The trajectory of
    a rollout that did not succeed is for inspection and may not be trained on."""
    packed = MEDIA_TYPE in request.headers.get("accept", "")
    body = await dispatcher_of(request).results(batch_id, cursor=cursor, limit=limit, wait_s=wait_s, packed=packed)
    return Response(body, media_type=MEDIA_TYPE if packed else "application/json")
