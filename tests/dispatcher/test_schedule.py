"""The core: admission, retries, liveness, cancellation, and invariants under any order of events. No I/O, no clock."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.moves import Patience
from rollway_dispatcher.order import Order
from rollway_dispatcher.rollout import Batch, fresh_batch
from rollway_dispatcher.schedule import REWARDLESS_LIMIT, Scheduler
from rollway_dispatcher.step import (
    Arrived,
    CancelBatch,
    Collect,
    Collected,
    Effect,
    Happened,
    Heard,
    News,
    Outcome,
    Poll,
    Published,
    Retried,
    Start,
    StartFailed,
    Step,
    Stop,
    Stopped,
)
from rollway_wire.batch import TERMINAL, Group, Limits, RolloutState
from rollway_wire.failures import RETRYABLE, Failure, FailureType

OK = Outcome(None, [1.0], {}, b"packed")
S = RolloutState


def order(batch_id: str = "b1", **limits: Any) -> Order:
    return Order.model_validate({
        "batch_id": batch_id, "experiment_id": "e", "runtime": {"kind": "process", "command": ["agent"]},
        "model_id": "", "sampling_params": {}, "capture": None, "rollout": {}, "limits": Limits(**limits),
        "require_rewards": True, "s3_bucket": "s",
    })  # fmt: skip


def batch_of(groups: int, n: int, batch_id: str = "b1", starting: int = 10_000, **limits: Any) -> Batch:
    made = fresh_batch(
        order(batch_id, **limits), [Group(group_id=f"g{i}", payload={}, n=n) for i in range(groups)], 0.0
    )
    made.room = type(made.room)("here", starting, None)
    return made


class Desk:
    """A scheduler, its time, and everything it has said."""

    def __init__(self, max_concurrent: int = 1000, window: float = 20.0, patience: float = 60.0) -> None:
        ids = (f"session-{i:030}" for i in itertools.count())
        self.core = Scheduler(Budgets(max_concurrent), Patience(window, patience), lambda: next(ids))
        self.now = 100.0
        self.effects: list[Effect] = []
        self.published: list[Published] = []

    def step(self, *news: News, after: float = 0.0) -> Step:
        self.now += after
        for item in news:
            self.core.take(item, self.now)
        done = self.core.step(self.now)
        self.effects += done.effects
        self.published += done.published
        return done

    def starts(self) -> list[Start]:
        return [e for e in self.effects if isinstance(e, Start)]

    def run_all(self) -> None:
        """INVOKED for everything that starts."""
        self.step(*[Happened(s, Trigger.INVOKED) for s, r in self.core.sessions.items() if r.state is S.STARTING])


def started(effects: list[Effect]) -> list[str]:
    return [e.rollout_id for e in effects if isinstance(e, Start)]


def test_groups_are_admitted_in_order_and_together() -> None:
    desk = Desk(max_concurrent=5)
    step = desk.step(Arrived(batch_of(3, 2)))
    assert started(step.effects) == ["b1/g0/0", "b1/g0/1", "b1/g1/0", "b1/g1/1", "b1/g2/0"]
    assert isinstance(step.effects[0], Poll)


def test_two_batches_take_turns_by_group() -> None:
    desk = Desk(max_concurrent=6)
    step = desk.step(Arrived(batch_of(4, 2, "b1")), Arrived(batch_of(4, 2, "b2")))
    assert started(step.effects) == ["b1/g0/0", "b1/g0/1", "b2/g0/0", "b2/g0/1", "b1/g1/0", "b1/g1/1"]


def test_a_batchs_own_limit_holds_and_a_finished_rollout_makes_room() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 4, max_concurrent=2)))
    assert len(desk.starts()) == 2
    first = desk.starts()[0].session_id
    step = desk.step(Happened(first, Trigger.INVOKED), Happened(first, Trigger.NOTICED), Collected(first, OK))
    assert started(step.effects) == ["b1/g0/2"]


def test_a_runtimes_start_window_holds_back_starts_but_not_runs() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 6, starting=2)))
    assert len(desk.starts()) == 2
    desk.run_all()
    assert len(desk.starts()) == 4


def test_a_retry_has_a_new_session_waits_its_delay_and_goes_before_new_groups() -> None:
    desk = Desk(max_concurrent=1)
    desk.step(Arrived(batch_of(2, 1)))
    first = desk.starts()[0]
    died = Failure(type=FailureType.START_FAILED, message="no container")
    step = desk.step(StartFailed(first.session_id, died))
    assert step.retried == [Retried("b1", "b1/g0/0", first.session_id, 1, died)]
    assert started(step.effects) == ["b1/g1/0"], "room is used while the retry waits"
    assert [e.session_id for e in step.effects if isinstance(e, Stop)] == [first.session_id]
    desk.run_all()
    other = desk.starts()[1].session_id
    step = desk.step(Happened(other, Trigger.NOTICED), Collected(other, OK), after=5)
    again = desk.starts()[2]
    assert again.rollout_id == first.rollout_id
    assert again.session_id != first.session_id


def test_a_batch_is_taken_up_once_however_often_it_is_found_until_another_has_taken_it_over() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 2)))
    assert desk.core.adopt(batch_of(1, 2), [], desk.now) == []
    desk.step(Arrived(batch_of(1, 2)), CancelBatch("b1", "enough"))
    assert len(desk.starts()) == 2
    assert len(desk.published) == 2
    assert desk.core.adopt(batch_of(1, 2), [], desk.now) == [], "nor when it is finished here and may not be on disk"
    desk.core.drop("b1")
    assert isinstance(desk.core.adopt(batch_of(1, 2), [], desk.now)[0], Poll)


@pytest.mark.parametrize("kind", list(FailureType))
def test_only_what_another_attempt_can_mend_is_tried_again_and_only_so_often(kind: FailureType) -> None:
    desk = Desk(patience=0.0)
    desk.step(Arrived(batch_of(1, 1, max_attempts=3)))
    for _ in range(10):
        running = [s for s, r in desk.core.sessions.items() if r.state is S.STARTING]
        desk.step(*[StartFailed(s, Failure(type=kind, message="m")) for s in running], after=100)
    assert len(desk.starts()) == (3 if kind in RETRYABLE else 1)
    (result,) = desk.published
    assert result.rollout.failure is not None
    assert result.rollout.failure.type is kind


def test_throttling_keeps_the_session_pauses_the_runtime_and_fails_only_after_patience() -> None:
    desk = Desk(patience=30.0)
    throttled = Failure(type=FailureType.THROTTLED, message="slow down")
    desk.step(Arrived(batch_of(1, 2, max_attempts=1)))
    a, b = (s.session_id for s in desk.starts())
    step = desk.step(StartFailed(a, throttled), StartFailed(b, throttled))
    assert not step.effects, "paused: nothing is asked again at once, nothing needs stopping"
    assert desk.core.wake_at(desk.now) == pytest.approx(desk.now + 0.5), "refusals of one burst count once"
    step = desk.step(after=0.6)
    assert {e.session_id for e in step.effects if isinstance(e, Start)} == {a, b}
    step = desk.step(StartFailed(a, throttled), after=40)
    assert [p.rollout.failure and p.rollout.failure.type for p in step.published] == [FailureType.THROTTLED]


def test_a_refused_start_that_is_cancelled_is_stopped_for_its_gateway_session_is_open() -> None:
    desk = Desk(patience=30.0)
    desk.step(Arrived(batch_of(1, 2)))
    refused, other = (s.session_id for s in desk.starts())
    desk.step(StartFailed(refused, Failure(type=FailureType.THROTTLED, message="slow down")))
    step = desk.step(CancelBatch("b1", "enough"))
    stops = [e.session_id for e in step.effects if isinstance(e, Stop)]
    assert sorted(stops) == sorted([refused, other]) == sorted(s.session_id for s in step.stops_opened)
    assert len(step.published) == 2


def test_an_agent_that_reported_and_went_silent_is_suspected_and_one_that_never_did_is_not() -> None:
    desk = Desk(window=10.0)
    desk.step(Arrived(batch_of(1, 2, rollout_timeout_s=1000)))
    desk.run_all()
    pushing, silent = (s.session_id for s in desk.starts())
    assert desk.core.heard(pushing, desk.now)
    desk.step(Heard(pushing))
    desk.now += 9
    assert not desk.core.heard(pushing, desk.now), "only the first is news"
    assert not desk.step(after=9).effects
    (collect,) = desk.step(after=2).effects
    assert isinstance(collect, Collect)
    assert collect.session_id == pushing
    assert collect.suspicion is not None
    assert collect.suspicion.type is FailureType.AGENT_DIED
    assert desk.core.sessions[silent].state is S.RUNNING


def test_silence_counts_anew_after_a_pause_of_the_schedulers_own() -> None:
    desk = Desk(window=12.0)
    desk.step(Arrived(batch_of(1, 1, rollout_timeout_s=1000)))
    desk.run_all()
    (session,) = (s.session_id for s in desk.starts())
    desk.core.heard(session, desk.now)
    desk.step(Heard(session))

    def seconds(n: int) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(n):
            desk.core.listens(desk.now + 1)
            effects += desk.step(after=1).effects
        return effects

    assert not seconds(10)
    desk.now += 30
    assert not seconds(12), "nobody has listened for half a minute"
    assert [type(e) for e in seconds(1)] == [Collect]
    assert desk.core.sessions[session].suspicion is not None


def test_the_time_limit_counts_from_the_receipt() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 1, rollout_timeout_s=50)))
    desk.step(after=500)
    assert desk.starts(), "waiting for the runtime is not the agent's time"
    desk.run_all()
    assert not [e for e in desk.step(after=49).effects if isinstance(e, Collect)]
    assert desk.core.wake_at(desk.now) <= desk.now + 1.01
    (collect,) = desk.step(after=1.5).effects
    assert isinstance(collect, Collect)
    assert collect.suspicion is not None
    assert collect.suspicion.type is FailureType.TIMED_OUT


def test_news_of_an_earlier_attempt_changes_nothing() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 1)))
    old = desk.starts()[0].session_id
    desk.step(StartFailed(old, Failure(type=FailureType.START_FAILED, message="m")))
    desk.step(after=10)
    before = {r.rollout_id: r.state for r in desk.core.sessions.values()}
    step = desk.step(Happened(old, Trigger.INVOKED), Happened(old, Trigger.NOTICED), Collected(old, OK))
    assert not step.published
    assert {r.rollout_id: r.state for r in desk.core.sessions.values()} == before


def test_done_before_the_receipt_is_collected_and_the_late_receipt_ignored() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 1)))
    session = desk.starts()[0].session_id
    step = desk.step(Happened(session, Trigger.NOTICED), Happened(session, Trigger.INVOKED))
    assert [type(e) for e in step.effects] == [Collect]
    (result,) = desk.step(Collected(session, OK)).published
    assert result.rollout.state is S.SUCCEEDED


def test_a_contract_error_fails_the_batch_at_once_and_says_why_to_every_rollout() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(2, 2)), Arrived(batch_of(1, 1, "b2")))
    first = desk.starts()[0]
    step = desk.step(StartFailed(first.session_id, Failure(type=FailureType.CONTRACT_ERROR, message="no such ARN")))
    assert Counter(p.rollout.state for p in step.published) == {S.FAILED: 1, S.CANCELLED: 3}
    for p in step.published:
        assert p.rollout.failure is not None
        assert "no such ARN" in p.rollout.failure.message
    assert desk.core.batches["b1"].contract_error == "no such ARN"
    assert len([e for e in step.effects if isinstance(e, Stop)]) == 4
    assert desk.core.batches["b1"].finished_at is None, "finished when the sessions are stopped"
    assert "b2" in desk.core.batches
    desk.step(*[Stopped(e.session_id) for e in desk.effects if isinstance(e, Stop)])
    assert "b1" not in desk.core.batches


def test_an_agent_that_never_returns_rewards_breaks_the_batch_and_one_lapse_does_not() -> None:
    lapse = Outcome(Failure(type=FailureType.AGENT_ERROR, message="no usable rewards"), result={}, rewardless=True)

    def finish(desk: Desk, outcomes: list[Outcome]) -> None:
        for start, outcome in zip(desk.starts(), outcomes, strict=False):
            desk.step(Happened(start.session_id, Trigger.NOTICED), Collected(start.session_id, outcome))

    broken, sound = Desk(), Desk()
    broken.step(Arrived(batch_of(1, 20)))
    finish(broken, [lapse] * REWARDLESS_LIMIT)
    assert broken.core.batches["b1"].contract_error is not None
    assert len(broken.published) == 20
    sound.step(Arrived(batch_of(1, 20)))
    finish(sound, [OK] + [lapse] * 19)
    assert len(sound.published) == 20
    assert Counter(p.rollout.state for p in sound.published) == {S.SUCCEEDED: 1, S.FAILED: 19}


def test_cancelling_twice_and_cancelling_the_unknown_are_quiet() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 2)))
    assert len(desk.step(CancelBatch("b1", "enough")).published) == 2
    assert not desk.step(CancelBatch("b1", "enough"), CancelBatch("nothing", "x")).published


CHOICES = ["invoked", "noticed", "suspected", "ok", "bad", "incomplete", "throttled", "start_failed", "late", "cancel"]


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 5), st.floats(0, 30)), max_size=120),
    limit=st.integers(1, 6),
)
def test_whatever_happens_each_rollout_has_one_result_and_each_started_session_one_stop(
    events: list[tuple[str, int, float]], limit: int
) -> None:
    desk = Desk(max_concurrent=limit, patience=10.0)
    desk.step(Arrived(batch_of(2, 3, max_attempts=2)))
    total = 6
    for name, pick, after in events:
        desk.step(*_news(desk, name, pick), after=after)
        alive = [r for r in desk.core.sessions.values() if r.state in (S.STARTING, S.RUNNING, S.COLLECTING)]
        assert len(alive) <= limit
    desk.step(CancelBatch("b1", "the end"))
    assert sorted(p.seq for p in desk.published) == list(range(1, total + 1))
    assert len({p.rollout.rollout_id for p in desk.published}) == total
    assert all(p.rollout.state in TERMINAL for p in desk.published)
    begun = {s.session_id for s in desk.starts()}
    stops = Counter(e.session_id for e in desk.effects if isinstance(e, Stop))
    assert not begun - stops.keys() - _refused(desk), "every session that may run is stopped"
    assert set(stops.values()) <= {1}
    for p in desk.published:
        assert (p.rollout.state is S.SUCCEEDED) == (p.outcome is not None and p.outcome.failure is None)
        assert p.rollout.attempt <= 2
    desk.step(*[Stopped(s) for s in stops])
    assert not desk.core.batches
    assert not desk.core.sessions


def _news(desk: Desk, name: str, pick: int) -> list[News]:
    by_state: dict[RolloutState, list[str]] = {state: [] for state in S}
    for session_id, r in desk.core.sessions.items():
        by_state[r.state].append(session_id)

    def one(*states: RolloutState) -> str | None:
        there = [s for state in states for s in by_state[state]]
        return there[pick % len(there)] if there else None

    failing = {"throttled": FailureType.THROTTLED, "start_failed": FailureType.START_FAILED}
    if name == "cancel":
        return [CancelBatch("b1", "chance")] if pick == 5 else []
    if name == "late":
        old = [e.session_id for e in desk.effects if isinstance(e, Stop)]
        return [Happened(old[pick % len(old)], Trigger.INVOKED)] if old else []
    if name in failing:
        s = one(S.STARTING)
        return [StartFailed(s, Failure(type=failing[name], message=name))] if s else []
    if name in ("ok", "bad", "incomplete"):
        kind = {"bad": FailureType.AGENT_ERROR, "incomplete": FailureType.INCOMPLETE_CAPTURE}.get(name)
        s = one(S.COLLECTING)
        return [Collected(s, Outcome(Failure(type=kind, message=name)) if kind else OK)] if s else []
    if name == "invoked":
        s = one(S.STARTING, S.COLLECTING)
        return [Happened(s, Trigger.INVOKED)] if s else []
    if name == "suspected":
        s = one(S.RUNNING, S.COLLECTING)
        return [Happened(s, Trigger.SUSPECTED, Failure(type=FailureType.AGENT_DIED, message="gone"))] if s else []
    s = one(S.STARTING, S.RUNNING, S.COLLECTING)
    return [Happened(s, Trigger.NOTICED)] if s else []


def _refused(desk: Desk) -> set[str]:
    """Sessions whose last start was refused: nothing runs."""
    return {p.rollout.session_id or "" for p in desk.published if p.rollout.refused_since is not None}
