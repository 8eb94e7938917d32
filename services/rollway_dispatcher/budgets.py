"""Who is admitted next: the concurrency budgets, and the order in which batches and groups get room.

Batches take turns, one group a turn, so that a small batch is not stuck behind a large one. Within a batch, groups go
in order and a group's rollouts next to one another; what is under way goes before everything not yet started, the group
nearest to completion first (`line.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rollway_dispatcher.order import Room
from rollway_dispatcher.retry import pause_s
from rollway_dispatcher.rollout import Batch, Rollout, Standing
from rollway_wire.batch import RolloutState


@dataclass(slots=True)
class RuntimeBudget:
    """Use of one runtime, over all batches that share it."""

    room: Room
    starting: int = 0
    alive: int = 0
    refusals: int = 0
    """In a row."""
    paused_until: float = 0.0

    def refused(self, now: float) -> None:
        """The runtime has no room: leave it alone, longer each time in a row. Refusals of one burst count once."""
        if now >= self.paused_until:
            self.refusals += 1
            self.paused_until = now + pause_s(self.refusals)

    def accepted(self) -> None:
        self.refusals, self.paused_until = 0, 0.0

    def has_room(self, now: float) -> bool:
        if now < self.paused_until or self.starting >= self.room.starting:
            return False
        return self.room.alive is None or self.alive < self.room.alive


class Budgets:
    """Counts of what is alive, and admission within them."""

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self.alive = 0
        self.pressed: set[str] = set()
        """Pools whose engines have more than they can serve: nothing new is admitted for them."""
        self._runtimes: dict[str, RuntimeBudget] = {}
        self._turn = 0

    def runtime(self, batch: Batch) -> RuntimeBudget:
        return self._runtimes.setdefault(batch.room.key, RuntimeBudget(batch.room))

    def account(self, batch: Batch, before: RolloutState, after: RolloutState) -> None:
        """A rollout of ``batch`` went from one state to another."""
        runtime = self.runtime(batch)
        alive = (after in ALIVE) - (before in ALIVE)
        self.alive += alive
        batch.alive += alive
        runtime.alive += alive
        runtime.starting += (after is RolloutState.STARTING) - (before is RolloutState.STARTING)

    def admit(self, batches: Iterable[Batch], now: float, admit: Callable[[Rollout], None]) -> None:
        """Call ``admit`` for each rollout there is room for, in turn."""
        waiting = [b for b in batches if b.line.front(now) is not None]
        if not waiting:
            return
        first = self._turn % len(waiting)
        queue = waiting[first:] + waiting[:first]
        while queue:
            queue = [b for b in queue if self._admit_group(b, now, admit)]
            self._turn += 1

    def _admit_group(self, batch: Batch, now: float, admit: Callable[[Rollout], None]) -> bool:
        """Admit the rest of the group in front. False: nothing more of this batch fits or waits."""
        front = batch.line.front(now)
        group = None if front is None else batch.groups[front.group]
        if group is not None and not (group.begun or self._fits_whole(batch, group)):
            return False
        while front is not None and batch.groups[front.group] is group:
            if not self._fits(batch, now):
                return False
            group.begun = True
            admit(batch.line.pop())
            front = batch.line.front(now)
        return front is not None

    def _fits(self, batch: Batch, now: float) -> bool:
        if batch.order.capture is not None and batch.order.capture.pool in self.pressed:
            return False
        return self._spare(batch) > 0 and self.runtime(batch).has_room(now)

    def _fits_whole(self, batch: Batch, group: Standing) -> bool:
        """Whether a group may begin. One larger than all the room there can ever be begins when that is empty."""
        if batch.order.policy.admission == "stream":
            return True
        runtime = self.runtime(batch)
        if runtime.room.alive is not None and runtime.room.alive - runtime.alive < min(group.open, runtime.room.alive):
            return False
        return self._spare(batch) >= min(group.open, self._limit(batch))

    def _spare(self, batch: Batch) -> int:
        own = batch.order.limits.max_concurrent
        spare = self.max_concurrent - self.alive
        return spare if own is None else min(spare, own - batch.alive)

    def _limit(self, batch: Batch) -> int:
        own = batch.order.limits.max_concurrent
        return self.max_concurrent if own is None else min(own, self.max_concurrent)

    def next_pause_end(self, batches: Iterable[Batch], now: float) -> float:
        """When a paused runtime that something waits for may be asked again; infinity for none."""
        ends = (self.runtime(b).paused_until for b in batches if b.line.front(now) is not None)
        return min((t for t in ends if t > now), default=float("inf"))


ALIVE = frozenset({RolloutState.STARTING, RolloutState.RUNNING, RolloutState.COLLECTING})
