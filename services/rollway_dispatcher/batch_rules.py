"""What a batch's own choices (`rollway_wire.batch.Policy`) do to its rollouts: groups decided, extras let in, hedges,
quarantine, the deadline. Pure; the arithmetic is in `policy`."""

from __future__ import annotations

from rollway_dispatcher import policy
from rollway_dispatcher.moves import Moves
from rollway_dispatcher.rollout import Batch, Standing
from rollway_wire.batch import RolloutState
from rollway_wire.failures import Failure, FailureType


class BatchRules(Moves):
    def _weigh(self, batch: Batch, group: int, now: float) -> None:
        """A result came, or the batch was taken up: end a decided group, let in what another one needs."""
        standing = batch.groups[group]
        if batch.cancelled or standing.decided:
            return
        if standing.lacking == 0:
            standing.decided = True
            reason = f"surplus: its group has the {standing.wanted} results it wants"
            self._cancel_group(batch, standing, reason, now)
            self._hedge(batch, now)
            return
        while standing.held and standing.open < standing.lacking and not batch.past_deadline:
            self._let_in(batch, group, now)
        self._hedge(batch, now)

    def _cancel_group(self, batch: Batch, standing: Standing, reason: str, now: float) -> None:
        for ordinal in range(standing.first, standing.first + standing.size):
            if (r := batch.rollouts.get(ordinal)) is not None:
                self._cancel_one(r, reason, now)

    def _let_in(self, batch: Batch, group: int, now: float) -> None:
        r = policy.let_in(batch, group)
        batch.line.join(r, now, lacking=batch.groups[group].lacking)

    def _hedge(self, batch: Batch, now: float) -> None:
        last = policy.straggler(batch)
        if last is None or batch.cancelled or batch.past_deadline:
            return
        at = policy.hedge_at(batch, last)
        if now >= at:
            self._let_in(batch, last.group, now)
        elif at != float("inf"):
            self._timers.set(at, batch.batch_id)

    def _quarantine(self, batch: Batch, group: int, failure: Failure, now: float) -> None:
        """An input that kills every agent it is given to is given to no more of them."""
        standing, limit = batch.groups[group], batch.order.policy.quarantine_after
        if limit is None or standing.decided or standing.succeeded or standing.deaths < limit:
            return
        standing.decided = True
        reason = (
            f"quarantined: {standing.deaths} agents ended on this input without a result, the last: {failure.message}"
        )
        self._cancel_group(batch, standing, reason, now)

    def _batch_due(self, batch: Batch, now: float) -> None:
        """Its deadline, or its last rollout may be hedged."""
        deadline_s = batch.order.policy.deadline_s
        if deadline_s is not None and now >= batch.created_at + deadline_s and not batch.past_deadline:
            self._end_by_deadline(batch, deadline_s, now)
        self._hedge(batch, now)

    def _end_by_deadline(self, batch: Batch, deadline_s: float, now: float) -> None:
        batch.past_deadline = True
        for r in list(batch.rollouts.values()):
            if r.state is RolloutState.RUNNING:
                message = f"no result by the batch's deadline of {deadline_s:g} s"
                self._suspect(r, Failure(type=FailureType.TIMED_OUT, message=message), now)
            elif r.state in (RolloutState.PENDING, RolloutState.STARTING):
                self._cancel_one(r, f"not running by the batch's deadline of {deadline_s:g} s", now)
