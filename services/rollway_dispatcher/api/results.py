"""``/v1/batches/{batch_id}/results``: what has finished, in the order it did, in five forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from rollway_dispatcher.api.batches import BatchId, dispatcher_of
from rollway_dispatcher.api.conditional import chosen_form, headers, tagged
from rollway_dispatcher.api.examples import RESULTS_PAGE, problems
from rollway_dispatcher.arrow_page import AVAILABLE as ARROW_AVAILABLE
from rollway_dispatcher.arrow_page import arrow_page
from rollway_dispatcher.dispatcher import Dispatcher
from rollway_dispatcher.results_page import EventStream, Found, NdjsonStream, json_page, packed_page
from rollway_wire.batch import ARROW, EVENTS, NDJSON, ResultsPage
from rollway_wire.codec import MEDIA_TYPE
from rollway_wire.problems import RollwayError, Unprocessable

router = APIRouter(prefix="/v1/batches", tags=["results"])

BEAT_S = 15.0
"""Longest silence of a stream: proxies keep it open, and a reader that is gone is noticed."""
CHUNK_BYTES = 4 * 2**20
"""A stream reads ahead no further than this, unless a single result is larger."""
JSON = "application/json"
PAGES: dict[str, Callable[[Found], bytes]] = {JSON: json_page, MEDIA_TYPE: packed_page}
if ARROW_AVAILABLE:
    PAGES[ARROW] = arrow_page
STREAMS: dict[str, type[NdjsonStream | EventStream]] = {NDJSON: NdjsonStream, EVENTS: EventStream}

_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/{batch_id}/results",
    response_model=ResultsPage,
    summary="Results in the order they finished, by cursor: pages or streams",
    responses={
        200: {
            "description": "One page, or with `application/x-ndjson` and `text/event-stream` the batch to its end.",
            "content": {
                JSON: {"example": RESULTS_PAGE}, MEDIA_TYPE: _BINARY, ARROW: _BINARY, NDJSON: _TEXT, EVENTS: _TEXT,
            },
        },
        204: {"description": "To `Last-Event-ID` alone: nothing follows it, so do not connect again."},
        304: {"description": "To `If-None-Match`: the page is the one with this ETag."},
        **problems(404, 406, 422),
    },
)  # fmt: skip
async def batch_results(
    request: Request,
    batch_id: BatchId,
    cursor: Annotated[int, Query(ge=0, le=2**53, description="0, or the last cursor received.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most results a page; streams do not heed it.")] = 100,
    wait_s: Annotated[float, Query(ge=0, le=60, description="How long a page waits for its first result.")] = 0.0,
    trajectories: Annotated[bool, Query(description="False leaves the tokens out.")] = True,
    last_event_id: Annotated[str | None, Header(description="A reconnecting EventSource's cursor.")] = None,
) -> Response:
    """Every rollout gives exactly one result, also one that failed or was cancelled. The same cursor gives the same
    results again, so a page or line whose answer was lost is not lost. ``finished`` is true on the last page. The
    trajectory of a rollout that did not succeed is for inspection and may not be trained on.

    `Accept` chooses the form. Pages: JSON; `application/vnd.rollway.packed`, the same tree with binary arrays; where
    pyarrow is installed `application/vnd.apache.arrow.stream`, a row per rollout. Streams follow the batch until it has
    ended: `application/x-ndjson` has lines `{cursor, rollout, trajectory}`, empty lines as signs of life, and last
    `{cursor, finished: true}`; `text/event-stream` has events `result` and last `finished`, whose id is the cursor. A
    stream without that end was cut: ask again with the last cursor. `{problem}` or the event `problem` says why."""
    form = chosen_form(request.headers.get("accept", ""), [*PAGES, *STREAMS])
    dispatcher = dispatcher_of(request)
    if form in STREAMS:
        return await _stream(dispatcher, batch_id, _resumed(cursor, last_event_id), form, trajectories, last_event_id)
    found = await dispatcher.results(
        batch_id, cursor=cursor, limit=limit, wait_s=wait_s, trajectories=trajectories, max_bytes=None
    )
    # Results never change, so what a page holds names it.
    tag = f"{batch_id}.{cursor}.{found.cursor}.{found.finished:d}.{trajectories:d}.{form.rsplit('/', 1)[1]}"
    if (known := tagged(request, tag)) is not None:
        return known
    body = await asyncio.to_thread(PAGES[form], found)
    return Response(body, media_type=form, headers=headers(tag))


def _resumed(cursor: int, last_event_id: str | None) -> int:
    if not last_event_id:
        return cursor
    if not (last_event_id.isascii() and last_event_id.isdigit()) or len(last_event_id) > 15:
        raise Unprocessable(f"Last-Event-ID {last_event_id!r:.60} is not a cursor of this stream")
    return int(last_event_id)


async def _stream(
    dispatcher: Dispatcher, batch_id: str, cursor: int, form: str, trajectories: bool, last_event_id: str | None
) -> Response:
    async def after(at: int, wait_s: float) -> Found:
        return await dispatcher.results(
            batch_id, cursor=at, limit=1000, wait_s=wait_s, trajectories=trajectories, max_bytes=CHUNK_BYTES
        )

    first = await after(cursor, 0.0)  # so that what is refused is refused with its status
    if last_event_id and first.finished and not first.results:
        return Response(status_code=204)
    body = _follow(first, after, STREAMS[form])
    return StreamingResponse(body, media_type=form, headers={"cache-control": "no-store", "x-accel-buffering": "no"})


async def _follow(
    found: Found, after: Callable[[int, float], Any], stream: type[NdjsonStream | EventStream]
) -> AsyncIterator[bytes]:
    yield stream.beat  # the reader sees at once that it is connected
    while True:
        if found.results:
            yield await asyncio.to_thread(stream.results, found)
        if found.finished:
            yield stream.end(found.cursor)
            return
        try:
            found = await after(found.cursor, BEAT_S)
        except RollwayError as e:
            yield stream.problem(e)
            return
        if not found.results and not found.finished:
            yield stream.beat
