"""The dispatcher's API as `Call` values; see docs/architecture.md for the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollway_driver.client.call import ANSWER_TIMEOUT_S, Call, json_body, model, models, nothing, segment
from rollway_wire.batch import (
    ARROW,
    BatchRequest,
    BatchStatus,
    FailureReason,
    ResultsPage,
    RolloutResult,
    RolloutView,
    SessionView,
    StopSessions,
)
from rollway_wire.codec import MEDIA_TYPE, load_trajectory
from rollway_wire.tokens import Trajectory

CANCEL_TIMEOUT_S = 120.0
"""Of many sessions at once: the dispatcher answers when all of it is on disk."""


class FinishedRollout(NamedTuple):
    """One finished rollout and what its model calls left behind; None: nothing was captured."""

    rollout: RolloutResult
    trajectory: Trajectory | None


class Page(NamedTuple):
    """Results in the order they finished."""

    results: tuple[FinishedRollout, ...]
    cursor: int
    """Pass back to get what finished after these."""
    finished: bool
    """True when every rollout is terminal and this page reaches the end."""


class ArrowPage(NamedTuple):
    """A page as columns: a ``pyarrow.Table`` with a row per rollout, in the order they finished."""

    table: Any
    cursor: int
    finished: bool


def submit(request: BatchRequest, idempotency_key: str) -> Call[BatchStatus]:
    headers = {"idempotency-key": idempotency_key}
    return Call("POST", "/v1/batches", model(BatchStatus), headers=headers, content=json_body(request))


def status(batch_id: str) -> Call[BatchStatus]:
    return Call("GET", f"/v1/batches/{segment(batch_id)}", model(BatchStatus))


def batches() -> Call[list[BatchStatus]]:
    return Call("GET", "/v1/batches", models(BatchStatus), params={"limit": 1000})


def rollouts(batch_id: str) -> Call[list[RolloutView]]:
    return Call("GET", f"/v1/batches/{segment(batch_id)}/rollouts", models(RolloutView), params={"limit": 10_000})


def failures(batch_id: str) -> Call[list[FailureReason]]:
    return Call("GET", f"/v1/batches/{segment(batch_id)}/failures", models(FailureReason))


def results(batch_id: str, cursor: int, limit: int, wait_s: float, packed: bool) -> Call[Page]:
    return Call(
        "GET",
        f"/v1/batches/{segment(batch_id)}/results",
        _page,
        params={"cursor": cursor, "limit": limit, "wait_s": f"{wait_s:g}"},
        headers={"accept": MEDIA_TYPE if packed else "application/json"},
        timeout_s=wait_s + ANSWER_TIMEOUT_S,
    )


def arrow_page(batch_id: str, cursor: int, limit: int, wait_s: float, trajectories: bool) -> Call[ArrowPage]:
    params = {"cursor": cursor, "limit": limit, "wait_s": f"{wait_s:g}", "trajectories": str(trajectories).lower()}
    return Call(
        "GET",
        f"/v1/batches/{segment(batch_id)}/results",
        _arrow_page,
        params=params,
        headers={"accept": ARROW},
        timeout_s=wait_s + ANSWER_TIMEOUT_S,
    )


def cancel(batch_id: str) -> Call[BatchStatus]:
    return Call("POST", f"/v1/batches/{segment(batch_id)}/cancel", model(BatchStatus))


def cancel_rollout(batch_id: str, group_id: str, index: int) -> Call[RolloutView]:
    where = f"/v1/batches/{segment(batch_id)}/rollouts/{segment(group_id)}/{index}/cancel"
    return Call("POST", where, model(RolloutView), timeout_s=CANCEL_TIMEOUT_S)


def sessions() -> Call[list[SessionView]]:
    return Call("GET", "/v1/sessions", models(SessionView))


def stop_sessions(session_ids: Sequence[str] | None) -> Call[list[SessionView]]:
    wanted = StopSessions(session_ids=None if session_ids is None else list(session_ids))
    return Call("POST", "/v1/sessions/stop", models(SessionView), content=json_body(wanted), timeout_s=CANCEL_TIMEOUT_S)


def health() -> Call[None]:
    return Call("GET", "/health", nothing)


def _page(body: Any) -> Page:
    page = ResultsPage.model_validate(body)
    return Page(tuple(finished_rollout(entry) for entry in page.results), page.cursor, page.finished)


def _arrow_page(body: bytes) -> ArrowPage:
    import pyarrow  # heavy, and only for those who ask for columns

    table = pyarrow.ipc.open_stream(body).read_all()
    said = table.schema.metadata
    return ArrowPage(table, int(said[b"rollway.cursor"]), said[b"rollway.finished"] == b"true")


def finished_rollout(entry: dict[str, Any]) -> FinishedRollout:
    """From a page's entry or a stream's line."""
    tree = entry["trajectory"]
    return FinishedRollout(
        RolloutResult.model_validate(entry["rollout"]), None if tree is None else load_trajectory(tree)
    )
