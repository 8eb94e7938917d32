"""When something may be overdue: a heap of guesses, each checked against the truth when its time comes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

LEAST_SWEPT = 1024


class Timers:
    """Keys by time, soonest first. A sign of life moves nothing here: whoever is woken for a key looks when it is due
    in truth, and sets it again if that is later. So a heartbeat costs nothing and an idle rollout one look a window."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._swept_at = LEAST_SWEPT

    def set(self, at: float, key: str) -> None:
        heapq.heappush(self._heap, (at, key))

    def due(self, now: float) -> Iterator[str]:
        """Take out the keys whose time has come. One that is set anew meanwhile for later is not among them."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[1]

    def sweep(self, alive: Callable[[str], bool]) -> None:
        """Forget the dead, once there may be as many of them as of the living: a limit of hours would keep them."""
        if len(self._heap) >= self._swept_at:
            self._heap = [entry for entry in self._heap if alive(entry[1])]
            heapq.heapify(self._heap)
            self._swept_at = max(LEAST_SWEPT, 2 * len(self._heap))

    def __len__(self) -> int:
        return len(self._heap)

    def soonest(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")
