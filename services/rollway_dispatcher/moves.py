"""How one rollout changes: along the table in `lifecycle`, with what must be written and done because of it. Pure.

Everything that changes a rollout's state goes through `Moves._move`. What a change means for its batch, the layers
above say: `batch_rules` (the policy a batch has chosen), `schedule` (news and time).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from rollway_dispatcher import policy
from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.lifecycle import Duty, Trigger, next_move
from rollway_dispatcher.rollout import Batch, Rollout
from rollway_dispatcher.step import Collect, Outcome, Published, Start, Step, Stop, Watch
from rollway_dispatcher.timers import Timers
from rollway_wire.batch import TERMINAL, RolloutState
from rollway_wire.failures import Failure, FailureType


@dataclass(frozen=True, slots=True)
class Patience:
    heartbeat_window_s: float
    throttle_patience_s: float


class Moves(ABC):
    """What is under way, and the step that its changes add up to."""

    def __init__(self, budgets: Budgets, patience: Patience, new_session_id: Callable[[], str]) -> None:
        self._budgets = budgets
        self._patience = patience
        self._new_session_id = new_session_id
        self.batches: dict[str, Batch] = {}
        self.sessions: dict[str, Rollout] = {}
        """The rollouts that have a session, by its id."""
        self._stop_of: dict[str, str] = {}
        self._timers = Timers()
        """Of sessions (silence, time limit) and of batches (deadline, hedge), by their ids."""
        self._step = Step()

    @abstractmethod
    def _weigh(self, batch: Batch, group: int, now: float) -> None:
        """A rollout of the group has its result."""

    @abstractmethod
    def _hedge(self, batch: Batch, now: float) -> None:
        """A rollout of the batch runs."""

    def _admit(self, r: Rollout, now: float) -> None:
        if r.session_id is None:
            r.session_id = self._new_session_id()
            self.sessions[r.session_id] = r
        r.admitted_at = now
        self._move(r, Trigger.ADMITTED, now)

    def _cancel_one(self, r: Rollout, reason: str, now: float) -> None:
        if r.state in TERMINAL:
            return
        r.failure = Failure(type=FailureType.CANCELLED, message=reason)
        refused = r.state is RolloutState.PENDING and r.refused_since is not None
        self._move(r, Trigger.CANCELLED, now)
        if refused:  # the runtime started nothing, and the gateway's session was open by then
            self._discharge(Duty.STOP, self.batches[r.batch_id], r, now, None)

    def _suspect(self, r: Rollout, failure: Failure | None, now: float) -> None:
        """S3 is asked before it counts."""
        if r.state is RolloutState.RUNNING:
            r.suspicion = failure
        self._move(r, Trigger.SUSPECTED, now)

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
                self._step.effects.append(start_of(r))
            case Duty.WATCH:
                self._step.effects.append(Watch(r.batch_id, session_id))
            case Duty.COLLECT:
                self._step.effects.append(collect_of(r))
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


def start_of(r: Rollout, *, resumed: bool = False) -> Start:
    return Start(r.batch_id, r.rollout_id, r.group, r.group_id, r.session_id or "", resumed)


def collect_of(r: Rollout) -> Collect:
    return Collect(r.batch_id, r.rollout_id, r.group_id, r.session_id or "", r.suspicion)
