"""Who is admitted next: the concurrency budgets, and the order in which batches and groups get room.

Batches take turns, one group a turn, so that a small batch is not stuck behind a large one. Within a batch, groups go
in order and a group's rollouts next to one another; a retry goes before everything not yet started, because its group
is the nearest to completion.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rollway_dispatcher.order import Room
from rollway_dispatcher.retry import pause_s
from rollway_dispatcher.rollout import Batch, Rollout
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
        waiting = [b for b in batches if _due(b, now)]
        if not waiting:
            return
        first = self._turn % len(waiting)
        queue = waiting[first:] + waiting[:first]
        while queue:
            queue = [b for b in queue if self._admit_group(b, now, admit)]
            self._turn += 1

    def _admit_group(self, batch: Batch, now: float, admit: Callable[[Rollout], None]) -> bool:
        """Admit the rest of the group in front. False: nothing more of this batch fits or waits."""
        group = batch.ready[0].group
        while batch.ready and batch.ready[0].group == group:
            if not self._fits(batch, now):
                return False
            admit(batch.ready.popleft())
            _drop_stale(batch)
        return bool(batch.ready)

    def _fits(self, batch: Batch, now: float) -> bool:
        own = batch.order.limits.max_concurrent
        return (
            self.alive < self.max_concurrent
            and (own is None or batch.alive < own)
            and self.runtime(batch).has_room(now)
        )

    def next_pause_end(self, batches: Iterable[Batch], now: float) -> float:
        """When a paused runtime that something waits for may be asked again; infinity for none."""
        ends = (self.runtime(b).paused_until for b in batches if b.ready)
        return min((t for t in ends if t > now), default=float("inf"))


ALIVE = frozenset({RolloutState.STARTING, RolloutState.RUNNING, RolloutState.COLLECTING})


def enqueue(batch: Batch, rollout: Rollout, now: float) -> None:
    """Put a pending rollout where it waits: at the front when it has been admitted before, else in order."""
    if rollout.not_before > now:
        heapq.heappush(batch.delayed, (rollout.not_before, rollout.ordinal, rollout))
    elif rollout.session_id is None:
        batch.ready.append(rollout)
    else:
        batch.ready.appendleft(rollout)


def _due(batch: Batch, now: float) -> bool:
    """Move what has become due to the front of the line; whether anything waits in it."""
    while batch.delayed and batch.delayed[0][0] <= now:
        batch.ready.appendleft(heapq.heappop(batch.delayed)[2])
    _drop_stale(batch)
    return bool(batch.ready)


def _drop_stale(batch: Batch) -> None:
    """Rollouts cancelled or noticed while they waited are still in line; nothing but their state says so."""
    while batch.ready and batch.ready[0].state is not RolloutState.PENDING:
        batch.ready.popleft()
