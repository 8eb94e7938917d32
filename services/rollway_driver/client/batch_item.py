"""`BatchItem`: one payload's end in `RolloutClient.run_batch`."""

from __future__ import annotations

import traceback
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from rollway_driver.client.dispatcher_calls import FinishedRollout
from rollway_driver.client.errors import RolloutFailed
from rollway_driver.client.outcome import saved_result
from rollway_wire.failures import Failure, FailureType
from rollway_wire.problems import RollwayError
from rollway_wire.tokens import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """``success`` means that a result was saved: an agent that raised saved its error, and ``failure`` says so."""

    success: bool
    result: dict[str, Any] | None = None
    """What the agent saved, without the echoed payload."""
    error: str | None = None
    """Why there is no result; with the agent's traceback where there is one."""
    index: int
    """Of the payload in the list given."""
    elapsed: float
    """Seconds from the start of the rollout to its end."""
    trajectory: Trajectory | None = None
    """Its tokens; None when nothing was captured."""
    failure: Failure | None = None


def finished_item(finished: FinishedRollout, index: int, waited_s: float, timeout: float) -> BatchItem:
    """The item of a finished rollout; ``waited_s`` stands in for its duration when it never started."""
    rollout, times = finished.rollout, finished.rollout.timings
    begun = times.invoked_at or times.admitted_at
    took = times.finished_at - begun if times.finished_at and begun else waited_s
    result = error = None
    try:
        result = saved_result(finished)
    except (CancelledError, RollwayError) as e:
        error = _explained(e, timeout)
    return BatchItem(
        success=error is None,
        result=result,
        error=error,
        index=index,
        elapsed=took,
        trajectory=finished.trajectory,
        failure=rollout.failure,
    )


def rejected_item(error: Exception, index: int) -> BatchItem:
    """The item of a payload that could not be sent."""
    return BatchItem(success=False, error="".join(traceback.format_exception_only(error)), index=index, elapsed=0.0)


def _explained(error: Exception, timeout: float) -> str:
    if not isinstance(error, RolloutFailed):
        return f"{type(error).__name__}: {error}"
    if error.failure.type is FailureType.TIMED_OUT:
        return f"Timeout after {timeout}s: {error.failure.message}"
    return f"{error}\n{error.failure.traceback}" if error.failure.traceback else str(error)
