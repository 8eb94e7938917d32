"""A batch's policy (`rollway_wire.batch.Policy`) as arithmetic on where its groups stand. Pure.

Over-sampling and hedging are one thing: extra rollouts of a group, of which as many count as the group wants. They
differ in when an extra may start: with its group, or not before something is missing or late.
"""

from __future__ import annotations

from statistics import median

from rollway_dispatcher.rollout import Batch, Rollout
from rollway_wire.batch import HEDGE_FACTOR, RolloutState


def holds_back(batch: Batch) -> bool:
    return batch.order.policy.extra > 0 and batch.order.policy.extra_start == "straggler"


def take_up(batch: Batch) -> None:
    """Count where each group stands, of a new batch or one from disk. What was let in before a restart and had not
    started is held back again, and let in again by the same rule."""
    batch.held = 0
    for standing in batch.groups:
        standing.open, standing.held = 0, []
    for r in batch.rollouts.values():
        standing = batch.groups[r.group]
        untouched = r.state is RolloutState.PENDING and r.session_id is None
        if holds_back(batch) and r.index >= standing.wanted and untouched:
            standing.held.insert(0, r)
            batch.held += 1
        else:
            standing.open += 1
            standing.begun |= not untouched


def let_in(batch: Batch, group: int) -> Rollout:
    """Take the next extra of a group from those held back; it joins the line."""
    standing = batch.groups[group]
    batch.held -= 1
    standing.open += 1
    return standing.held.pop()


def count(batch: Batch, r: Rollout) -> None:
    """A rollout has its result."""
    standing = batch.groups[r.group]
    if r in standing.held:
        standing.held.remove(r)
        batch.held -= 1
        return
    standing.open -= 1
    if r.state is RolloutState.SUCCEEDED:
        standing.succeeded += 1
        if holds_back(batch) and r.invoked_at is not None and r.noticed_at is not None:
            batch.durations.append(r.noticed_at - r.invoked_at)


def straggler(batch: Batch) -> Rollout | None:
    """The one rollout that a batch still waits for, if it may be hedged."""
    if batch.held == 0 or len(batch.rollouts) - batch.held != 1:
        return None
    last = next(r for r in batch.rollouts.values() if r not in batch.groups[r.group].held)
    return last if last.state is RolloutState.RUNNING and batch.groups[last.group].held else None


def hedge_at(batch: Batch, last: Rollout) -> float:
    """Unix seconds from when on the straggler is hedged; infinity while there is nothing to compare it with."""
    if not batch.durations or last.invoked_at is None:
        return float("inf")
    return last.invoked_at + HEDGE_FACTOR * median(batch.durations)
