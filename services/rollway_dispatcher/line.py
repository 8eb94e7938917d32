"""The line in which a batch's pending rollouts wait to be admitted. Pure.

First attempts go in order, group by group. Before them go those that have been admitted before (retries, refusals) and
extras let in later: their group is under way. Among those, the group that lacks the fewest results goes first.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from rollway_wire.batch import RolloutState

if TYPE_CHECKING:
    from rollway_dispatcher.rollout import Rollout


class Line:
    """Rollouts cancelled or noticed while they waited are still in line; nothing but their state says so."""

    def __init__(self) -> None:
        self._first: deque[Rollout] = deque()
        self._again: list[tuple[int, int, Rollout]] = []
        self._delayed: list[tuple[float, int, int, Rollout]] = []

    def join(self, r: Rollout, now: float, *, lacking: int | None = None) -> None:
        """Wait, from ``r.not_before`` on.

        Args:
            lacking: how many results its group lacks; None: it is a first attempt, and waits in order.
        """
        if lacking is None:
            self._first.append(r)
        elif r.not_before > now:
            heapq.heappush(self._delayed, (r.not_before, lacking, r.ordinal, r))
        else:
            heapq.heappush(self._again, (lacking, r.ordinal, r))

    def front(self, now: float) -> Rollout | None:
        """Who goes next."""
        while self._delayed and self._delayed[0][0] <= now:
            _, lacking, ordinal, r = heapq.heappop(self._delayed)
            heapq.heappush(self._again, (lacking, ordinal, r))
        while self._again and self._again[0][2].state is not RolloutState.PENDING:
            heapq.heappop(self._again)
        if self._again:
            return self._again[0][2]
        while self._first and self._first[0].state is not RolloutState.PENDING:
            self._first.popleft()
        return self._first[0] if self._first else None

    def pop(self) -> Rollout:
        """Take out what `front` has just shown."""
        return heapq.heappop(self._again)[2] if self._again else self._first.popleft()

    def next_due(self) -> float:
        """Unix seconds at which one that is delayed becomes due; infinity for none."""
        return self._delayed[0][0] if self._delayed else float("inf")

    def clear(self) -> None:
        self._first.clear()
        self._again.clear()
        self._delayed.clear()
