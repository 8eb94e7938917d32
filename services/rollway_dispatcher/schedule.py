"""The core: every change of every rollout happens here, synchronously, and comes out as one `Step`.

Pure but for its own memory: no clock, no I/O, no asyncio. `Scheduler.take` takes in one piece of news, `Scheduler.step`
returns what is to be written and, once that is written, what is to be done. The same news give the same steps. A piece
of news costs what it changes, however many rollouts are under way.

Three layers: how one rollout changes (`moves`), what its batch's choices make of that (`batch_rules`), and here what
comes in. A rollout's news is accepted only for the session it currently has; news of an earlier attempt is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from rollway_dispatcher import policy
from rollway_dispatcher.batch_rules import BatchRules
from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.moves import Patience, collect_of, start_of
from rollway_dispatcher.retry import retry_delay_s
from rollway_dispatcher.rollout import Batch, Rollout
from rollway_dispatcher.step import (
    Arrived,
    CancelBatch,
    CancelRollout,
    Collected,
    Effect,
    Happened,
    Heard,
    News,
    Outcome,
    Poll,
    Pressure,
    Retried,
    StartFailed,
    Step,
    Stop,
    Stopped,
    Watch,
)  # fmt: skip
from rollway_wire.batch import RolloutState
from rollway_wire.failures import Failure, FailureType

REWARDLESS_LIMIT = 8
"""Results in a row without usable rewards, and none with, after which the agent is taken not to return any."""
DEATHS = frozenset({FailureType.AGENT_DIED, FailureType.TIMED_OUT})
"""Failures that an input may be to blame for, and that cost a container."""
SCAN_EVERY_S = 0.2
"""What is overdue is looked for at most this often."""


class Scheduler(BatchRules):
    """All batches under way."""

    def __init__(self, budgets: Budgets, patience: Patience, new_session_id: Callable[[], str]) -> None:
        super().__init__(budgets, patience, new_session_id)
        self.known: set[str] = set()
        """Batches that are or were worked on here, but for those that others have taken over."""
        self._next_scan = 0.0
        self._listened_at = self._listening_since = 0.0

    def listens(self, now: float) -> None:
        """Pushes can come in; to be said every second. After a pause of our own (a stopped process, a frozen machine)
        what was pushed meanwhile is still to be read: silence counts anew."""
        if now - self._listened_at > self._patience.heartbeat_window_s / 4 + 1:
            self._listening_since = now
        self._listened_at = now

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
        container takes for a duplicate, after a look for its result. Finished results are not touched. A batch that is
        known already is left as it is.
        """
        if batch.batch_id in self.known:
            return []
        self._enlist(batch, now)
        effects: list[Effect] = [Poll(batch.batch_id)] if batch.rollouts else []
        for r in batch.rollouts.values():
            if r.state is RolloutState.STARTING:
                effects.append(start_of(r, resumed=True))
            elif r.state is RolloutState.RUNNING:
                r.heard_at = now
                effects.append(Watch(r.batch_id, r.session_id or ""))
            elif r.state is RolloutState.COLLECTING:
                effects.append(collect_of(r))
        for stop in stops:
            batch.stopping.add(stop.session_id)
            self._stop_of[stop.session_id] = batch.batch_id
            effects.append(stop)
        return effects

    def drop(self, batch_id: str) -> list[str]:
        """Forget a batch that another dispatcher works on now; the sessions whose tasks are to end here."""
        self.known.discard(batch_id)
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
                if arrived.batch_id not in self.known:
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
        self.known.add(batch.batch_id)
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
        if trigger is Trigger.SUSPECTED:
            self._suspect(r, failure, now)
        else:
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
            told = Retried(r.batch_id, r.rollout_id, r.session_id or "", r.attempt, failure)
            self._step.retried.append(told)
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
        self._timers.sweep(lambda key: key in self.sessions or key in self.batches)
        for key in list(self._timers.due(now)):
            if (batch := self.batches.get(key)) is not None:
                self._batch_due(batch, now)
            elif (r := self.sessions.get(key)) is not None and r.state is RolloutState.RUNNING:
                self._session_due(r, now)

    def _session_due(self, r: Rollout, now: float) -> None:
        limit = self.batches[r.batch_id].order.limits.rollout_timeout_s
        time_up = (r.invoked_at or now) + limit
        heard_at = max(r.heard_at, self._listening_since)
        silent = heard_at + self._patience.heartbeat_window_s if r.reports else float("inf")
        if now >= time_up:
            failure = Failure(type=FailureType.TIMED_OUT, message=f"no result within {limit:g} s")
        elif now >= silent:
            message = f"the agent stopped reporting {now - r.heard_at:.1f} s ago and saved no result"
            failure = Failure(type=FailureType.AGENT_DIED, message=message)
        else:
            self._timers.set(min(time_up, silent), r.session_id or "")
            return
        self._suspect(r, failure, now)
