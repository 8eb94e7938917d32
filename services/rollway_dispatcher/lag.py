"""Scheduling lag: from when a piece of news is known to when what follows from it has begun.

Known is when `Engine.tell` takes it; begun is when the tasks that the step asked for have each run for the first time.
In between lie the step before it, its own step, and the commit of both. How long the work then takes is not part of it,
nor what waits for room (admission) or for a place among those that collect at once.
"""

from __future__ import annotations

from math import ceil, log

WINDOW_S = 10.0
_LEAST_S, _RATIO, _BUCKETS = 1e-4, 1.1, 150
"""Up to 160 s, each bucket a tenth wider than the one before."""


class Lag:
    """A histogram over the last window that is over; memory does not grow with what is noted."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._last: tuple[int, ...] = ()
        self._until = 0.0

    def note(self, seconds: float, now: float) -> None:
        self._turn(now)
        place = ceil(log(max(seconds, _LEAST_S) / _LEAST_S, _RATIO))
        self._counts[min(place, _BUCKETS - 1)] += 1

    def quantile(self, q: float, now: float) -> float | None:
        """Seconds, at most a tenth too many; None: nothing happened in the window."""
        self._turn(now)
        left = q * sum(self._last)
        if not left:
            return None
        for place, count in enumerate(self._last):
            left -= count
            if left <= 0:
                return float(_LEAST_S * _RATIO**place)
        raise AssertionError("a quantile lies within its histogram")

    def _turn(self, now: float) -> None:
        if now >= self._until:
            stale = now >= self._until + WINDOW_S
            self._last = () if stale else tuple(self._counts)
            self._counts = [0] * _BUCKETS
            self._until = now + WINDOW_S
