"""Whether and when a failed attempt is followed by another: one rule per failure type."""

from __future__ import annotations

from rollway_wire.failures import RETRYABLE, FailureType

FIRST_DELAY_S: dict[FailureType, float] = {
    FailureType.THROTTLED: 5.0,  # the quota needs time, not a fresh session
    FailureType.START_FAILED: 1.0,  # image pulls and cold starts recover within seconds
    FailureType.AGENT_DIED: 0.5,
    FailureType.INCOMPLETE_CAPTURE: 0.2,  # nothing is overloaded; sample again
}
MAX_DELAY_S = 60.0


def retry_delay_s(failure: FailureType, attempt: int, max_attempts: int) -> float | None:
    """Seconds until the next attempt, doubling with each; None when ``attempt`` (from 1) was the last."""
    if failure not in RETRYABLE or attempt >= max_attempts:
        return None
    return float(min(MAX_DELAY_S, FIRST_DELAY_S[failure] * 2 ** (attempt - 1)))


def pause_s(level: int) -> float:
    """How long a runtime that refused for rate or quota is left alone, by how often in a row it refused (from 1)."""
    return float(min(30.0, 0.5 * 2 ** (level - 1)))
