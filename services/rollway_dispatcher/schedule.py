"""The core: every change of every rollout happens here, synchronously, and comes out as one `Step`.

Pure but for its own memory: no clock, no I/O, no asyncio. `Scheduler.take` takes in one piece of news, `Scheduler.step`
returns what is to be written and, once that is written, what is to be done. The same news give the same steps.

Past 300 lines because every change of state is in this one class, and splitting it would spread the invariants.
A rollout's news is accepted only for the session it currently has; news of an earlier attempt is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from rollway_dispatcher import policy
from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.lifecycle import Duty, Trigger, next_move
from rollway_dispatcher.retry import retry_delay_s
from rollway_dispatcher.rollout import Batch, Rollout, Standing
from rollway_dispatcher.step import (
    Arrived,
    CancelBatch,
    CancelRollout,
    Collect,
    Collected,
    Effect,
    Happened,
    Heard,
    News,
    Outcome,
    Poll,
    Pressure,
    Published,
    Start,
    StartFailed,
    Step,
    Stop,
    Stopped,
    Watch,
)  # fmt: skip
from rollway_dispatcher.timers import Timers
from rollway_wire.batch import TERMINAL, RolloutState
from rollway_wire.failures import Failure, FailureType

REWARDLESS_LIMIT = 8
"""Results in a row without usable rewards, and none with, after which the agent is taken not to return any."""
DEATHS = frozenset({FailureType.AGENT_DIED, FailureType.TIMED_OUT})
"""Failures that an input may be to blame for, and that cost a container."""
SCAN_EVERY_S = 0.2
"""What is overdue is looked for at most this often."""


@dataclass(frozen=True, slots=True)
class Patience:
    heartbeat_window_s: float
    throttle_patience_s: float


class Scheduler:
    """All batches under way."""

    def __init__(self, budgets: Budgets, patience: Patience, new_session_id: Callable[[], str]) -> None:
        self._budgets = budgets
        self._patience = patience
        self._new_session_id = new_session_id
        self.batches: dict[str, Batch] = {}
        self.sessions: dict[str, Rollout] = {}
        """The rollouts that have a session, by its id."""
        self._stop_of: dict[str, str] = {}
        self._next_scan = 0.0
        self._timers = Timers()
        """Of sessions (silence, time limit) and of batches (deadline, hedge), by their ids."""
        self._step = Step()

    def step(self, now: float) -> Step:
        """Find what is overdue, admit what fits, and hand out all that came of this and of the news since last time."""
        self._find_overdue(now)
        self._budgets.admit(list(self.batches.values()), now, lambda r: self._admit(r, now))
        done, self._step = self._step, Step()
        return done

    def wake_at(self, now: float) -> float:
        """Unix seconds at which `step` has something to do even without news."""
        delayed = min((b.line.next_due() for b in self.batches.values()), default=float("inf"))
        pause = self._budgets.next_pause_end(self.batches.values(), now)
        return min(delayed, pause, max(self._timers.soonest(), self._next_scan))

    def pools(self) -> set[str]:
        """Where batches under way are captured."""
        return {b.order.capture.pool for b in self.batches.values() if b.order.capture is not None and b.rollouts}

    def heard(self, session_id: str, now: float) -> bool:
        """Note a sign of life. True when it is the attempt's first, which `Heard` must then make durable."""
        rollout = self.sessions.get(session_id)
        if rollout is None:
            return False
        rollout.heard_at = now
        return not rollout.reports

    def adopt(self, batch: Batch, stops: Iterable[Stop], now: float) -> list[Effect]:
        """Take up a batch from disk where it was left; what must be done again, already on disk.

        A start may or may not have reached the runtime: it is repeated under the same session id, which the agent's
        container takes for a duplicate, after a look for its result. Finished results are not touched.
        """
        self._enlist(batch, now)
        effects: list[Effect] = [Poll(batch.batch_id)] if batch.rollouts else []
        for r in batch.rollouts.values():
            if r.state is RolloutState.STARTING:
                effects.append(_start(r, resumed=True))
            elif r.state is RolloutState.RUNNING:
                r.heard_at = now
                effects.append(Watch(r.batch_id, r.session_id or ""))
            elif r.state is RolloutState.COLLECTING:
                effects.append(_collect(r))
        for stop in stops:
            batch.stopping.add(stop.session_id)
            self._stop_of[stop.session_id] = batch.batch_id
            effects.append(stop)
        return effects

    def drop(self, batch_id: str) -> list[str]:
        """Forget a batch that another dispatcher works on now; the sessions whose tasks are to end here."""
        batch = self.batches.pop(batch_id, None)
        if batch is None:
            return []
        dropped = [s for s, r in self.sessions.items() if r.batch_id == batch_id] + sorted(batch.stopping)
        for r in batch.rollouts.values():
            self._budgets.account(batch, r.state, RolloutState.PENDING)
        for session_id in dropped:
            self.sessions.pop(session_id, None)
            self._stop_of.pop(session_id, None)
        batch.rollouts.clear()
        return dropped

    # Taking in news.

    def take(self, news: News, now: float) -> None:
        """Change what the news change.

        Raises:
            ContractViolation: the news cannot be true: a bug of ours. Nothing has changed.
        """
        match news:
            case Arrived(arrived):
                self._enlist(arrived, now)
                self._step.effects.append(Poll(arrived.batch_id))
            case Stopped(session_id):
                self._confirm_stop(session_id, now)
            case CancelBatch(batch_id, reason):
                if (batch := self.batches.get(batch_id)) is not None:
                    self._cancel(batch, reason, now)
            case CancelRollout(batch_id, ordinal, reason):
                if (batch := self.batches.get(batch_id)) and (r := batch.rollouts.get(ordinal)) is not None:
                    self._cancel_one(r, reason, now)
            case Heard(session_id):
                if (r := self.sessions.get(session_id)) is not None and not r.reports:
                    r.reports, r.started_at, r.heard_at = True, now, now
                    self._timers.set(now + self._patience.heartbeat_window_s, session_id)
                    self._step.rollouts[r.rollout_id] = r
            case Happened(session_id, trigger, failure):
                if (r := self.sessions.get(session_id)) is not None:
                    self._happened(r, trigger, failure, now)
            case StartFailed(session_id, failure):
                if (r := self.sessions.get(session_id)) is not None and r.state is RolloutState.STARTING:
                    self._start_failed(r, failure, now)
            case Collected(session_id, outcome):
                if (r := self.sessions.get(session_id)) is not None:
                    self._collected(r, outcome, now)
            case Pressure(pool, pressed):
                (self._budgets.pressed.add if pressed else self._budgets.pressed.discard)(pool)
            case _:
                assert_never(news)

    def _enlist(self, batch: Batch, now: float) -> None:
        self.batches[batch.batch_id] = batch
        policy.take_up(batch)
        for r in batch.rollouts.values():
            self._budgets.account(batch, RolloutState.PENDING, r.state)
            if r.state is RolloutState.RUNNING:
                batch.running[r.ordinal] = r
                self._timers.set(now, r.session_id or "")
            if r.session_id is not None:
                self.sessions[r.session_id] = r
            standing = batch.groups[r.group]
            if r.state is RolloutState.PENDING and r not in standing.held:
                batch.line.join(r, now, lacking=None if r.session_id is None else standing.lacking)
        if batch.order.policy.deadline_s is not None:
            self._timers.set(batch.created_at + batch.order.policy.deadline_s, batch.batch_id)
        for group in range(len(batch.groups)):
            self._weigh(batch, group, now)

    def _happened(self, r: Rollout, trigger: Trigger, failure: Failure | None, now: float) -> None:
        if trigger is Trigger.INVOKED:
            r.invoked_at, r.heard_at, r.refused_since = now, now, None
            self._budgets.runtime(self.batches[r.batch_id]).accepted()
        if trigger is Trigger.NOTICED and r.noticed_at is None:
            r.noticed_at = now
        if trigger is Trigger.SUSPECTED and r.state is RolloutState.RUNNING:
            r.suspicion = failure
        self._move(r, trigger, now)

    def _start_failed(self, r: Rollout, failure: Failure, now: float) -> None:
        batch = self.batches[r.batch_id]
        if failure.type is FailureType.THROTTLED:
            self._budgets.runtime(batch).refused(now)
            r.refused_since = r.refused_since or now
            if now - r.refused_since < self._patience.throttle_patience_s:
                self._move(r, Trigger.REFUSED, now)
                batch.line.join(r, now, lacking=batch.groups[r.group].lacking)
                return
        self._fail(r, failure, Trigger.START_RETRIED, Trigger.START_FAILED, None, now)

    def _collected(self, r: Rollout, outcome: Outcome, now: float) -> None:
        batch = self.batches[r.batch_id]
        if outcome.failure is None:
            batch.usable += 1
            self._move(r, Trigger.COLLECTED, now, outcome)
            return
        self._fail(r, outcome.failure, Trigger.RESULT_RETRIED, Trigger.RESULT_FAILED, outcome, now)
        if outcome.rewardless and batch.usable == 0:
            batch.rewardless += 1
            if batch.rewardless >= REWARDLESS_LIMIT and batch.contract_error is None:
                reason = f"{batch.rewardless} results and not one with usable rewards: {outcome.failure.message}"
                self._break_batch(batch, reason, now)

    def _fail(
        self, r: Rollout, failure: Failure, again: Trigger, final: Trigger, outcome: Outcome | None, now: float
    ) -> None:
        batch = self.batches[r.batch_id]
        if failure.type in DEATHS:
            batch.groups[r.group].deaths += 1
        delay = retry_delay_s(failure.type, r.attempt, batch.order.limits.max_attempts)
        if delay is not None and not batch.past_deadline:
            self._move(r, again, now)
            r.begin_attempt(self._new_session_id(), now + delay)
            self.sessions[r.session_id or ""] = r
            batch.line.join(r, now, lacking=batch.groups[r.group].lacking)
            self._quarantine(batch, r.group, failure, now)
            return
        r.failure = failure
        self._move(r, final, now, outcome)
        self._quarantine(batch, r.group, failure, now)
        if failure.type is FailureType.CONTRACT_ERROR:
            self._break_batch(batch, failure.message, now)

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

    def _break_batch(self, batch: Batch, reason: str, now: float) -> None:
        """The set-up is broken: what is left of the batch would only break the same way."""
        batch.contract_error = batch.contract_error or reason
        self._cancel(batch, f"the batch failed: {reason}", now)

    def _cancel(self, batch: Batch, reason: str, now: float) -> None:
        if batch.finished_at is not None:
            return
        batch.cancelled = True
        self._step.batches[batch.batch_id] = batch
        for r in list(batch.rollouts.values()):
            self._cancel_one(r, reason, now)
        batch.line.clear()
        self._finish_if_done(batch, now)

    def _cancel_one(self, r: Rollout, reason: str, now: float) -> None:
        if r.state in TERMINAL:
            return
        r.failure = Failure(type=FailureType.CANCELLED, message=reason)
        self._move(r, Trigger.CANCELLED, now)

    def _confirm_stop(self, session_id: str, now: float) -> None:
        batch = self.batches.get(self._stop_of.pop(session_id, ""))
        self._step.stops_closed.append(session_id)
        if batch is not None:
            batch.stopping.discard(session_id)
            self._finish_if_done(batch, now)

    # Time.

    def _find_overdue(self, now: float) -> None:
        if now < self._next_scan:
            return
        self._next_scan = now + SCAN_EVERY_S
        for key in list(self._timers.due(now)):
            if (batch := self.batches.get(key)) is not None:
                self._batch_due(batch, now)
            elif (r := self.sessions.get(key)) is not None and r.state is RolloutState.RUNNING:
                self._session_due(r, now)

    def _session_due(self, r: Rollout, now: float) -> None:
        limit = self.batches[r.batch_id].order.limits.rollout_timeout_s
        time_up = (r.invoked_at or now) + limit
        silent = r.heard_at + self._patience.heartbeat_window_s if r.reports else float("inf")
        if now >= time_up:
            failure = Failure(type=FailureType.TIMED_OUT, message=f"no result within {limit:g} s")
        elif now >= silent:
            message = f"the agent stopped reporting {now - r.heard_at:.1f} s ago and saved no result"
            failure = Failure(type=FailureType.AGENT_DIED, message=message)
        else:
            self._timers.set(min(time_up, silent), r.session_id or "")
            return
        self._happened(r, Trigger.SUSPECTED, failure, now)

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
                self._happened(r, Trigger.SUSPECTED, Failure(type=FailureType.TIMED_OUT, message=message), now)
            elif r.state in (RolloutState.PENDING, RolloutState.STARTING):
                self._cancel_one(r, f"not running by the batch's deadline of {deadline_s:g} s", now)

    # The policy of a batch.

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

    # Changing state.

    def _admit(self, r: Rollout, now: float) -> None:
        if r.session_id is None:
            r.session_id = self._new_session_id()
            self.sessions[r.session_id] = r
        r.admitted_at = now
        self._move(r, Trigger.ADMITTED, now)

    def _move(self, r: Rollout, trigger: Trigger, now: float, outcome: Outcome | None = None) -> None:
        move = next_move(r.state, trigger)
        if move is None:
            return
        batch, before = self.batches[r.batch_id], r.state
        r.state = move.to
        self._budgets.account(batch, before, move.to)
        self._step.rollouts[r.rollout_id] = r
        if move.to is RolloutState.RUNNING:
            batch.running[r.ordinal] = r
            self._timers.set(self._first_look(batch, r, now), r.session_id or "")
            self._hedge(batch, now)
        else:
            batch.running.pop(r.ordinal, None)
        for duty in move.duties:
            self._discharge(duty, batch, r, now, outcome)

    def _first_look(self, batch: Batch, r: Rollout, now: float) -> float:
        time_up = now + batch.order.limits.rollout_timeout_s
        return min(time_up, now + self._patience.heartbeat_window_s) if r.reports else time_up

    def _discharge(self, duty: Duty, batch: Batch, r: Rollout, now: float, outcome: Outcome | None) -> None:
        session_id = r.session_id or ""
        match duty:
            case Duty.START:
                self._step.effects.append(_start(r))
            case Duty.WATCH:
                self._step.effects.append(Watch(r.batch_id, session_id))
            case Duty.COLLECT:
                self._step.effects.append(_collect(r))
            case Duty.STOP:
                sealed = outcome is not None and outcome.trajectory is not None
                stop = Stop(r.batch_id, session_id, now, sealed)
                batch.stopping.add(session_id)
                self._stop_of[session_id] = r.batch_id
                self._step.stops_opened.append(stop)
                self._step.effects.append(stop)
                self.sessions.pop(session_id, None)
            case Duty.PUBLISH:
                self._publish(batch, r, now, outcome)

    def _publish(self, batch: Batch, r: Rollout, now: float, outcome: Outcome | None) -> None:
        r.finished_at = now
        batch.published += 1
        self._step.published.append(Published(r, batch.published, outcome))
        self._step.batches[batch.batch_id] = batch
        del batch.rollouts[r.ordinal]
        self.sessions.pop(r.session_id or "", None)
        policy.count(batch, r)
        self._weigh(batch, r.group, now)
        self._finish_if_done(batch, now)

    def _finish_if_done(self, batch: Batch, now: float) -> None:
        """A batch is finished when all its results are there; a cancelled one when its sessions are stopped, too."""
        if batch.finished_at is None and not batch.rollouts and not (batch.cancelled and batch.stopping):
            batch.finished_at = now
            self._step.batches[batch.batch_id] = batch
        if batch.finished_at is not None and not batch.stopping:
            self.batches.pop(batch.batch_id, None)


def _start(r: Rollout, *, resumed: bool = False) -> Start:
    return Start(r.batch_id, r.rollout_id, r.group, r.group_id, r.session_id or "", resumed)


def _collect(r: Rollout) -> Collect:
    return Collect(r.batch_id, r.rollout_id, r.group_id, r.session_id or "", r.suspicion)
