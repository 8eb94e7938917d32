"""Over-sampling, hedging, deadlines, gang admission, engine pressure: the core alone, no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.rollout import Batch, fresh_batch
from rollway_dispatcher.step import Arrived, Collect, Collected, Happened, Outcome, Pressure, Start, StartFailed, Stop
from rollway_wire.batch import TERMINAL, Capture, Group, Limits, Policy, RolloutState
from rollway_wire.failures import Failure, FailureType
from tests.dispatcher.test_schedule import OK, Desk, order, started

S = RolloutState
BAD = Outcome(Failure(type=FailureType.AGENT_ERROR, message="raised"))


def batch_of(
    groups: int, n: int, *, capture: bool = False, limits: dict[str, Any] | None = None, **policy: Any
) -> Batch:
    made = order().model_copy(
        update={
            "policy": Policy(**policy), "limits": Limits(**(limits or {})), "capture": Capture() if capture else None,
        }
    )  # fmt: skip
    batch = fresh_batch(made, [Group(group_id=f"g{i}", payload={}, n=n) for i in range(groups)], 100.0)
    batch.room = type(batch.room)("here", 10_000, None)
    return batch


def session(desk: Desk, rollout_id: str) -> str:
    return next(e.session_id for e in reversed(desk.starts()) if e.rollout_id == rollout_id)


def finish(desk: Desk, rollout_id: str, outcome: Outcome = OK) -> list[str]:
    """The rollouts started by it."""
    s = session(desk, rollout_id)
    return started(desk.step(Happened(s, Trigger.NOTICED), Collected(s, outcome)).effects)


def states(desk: Desk) -> dict[str, str]:
    return {p.rollout.rollout_id: p.rollout.state.value for p in desk.published}


def test_a_group_is_decided_by_its_first_n_results_and_the_surplus_is_stopped() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 2, extra=1)))
    desk.run_all()
    assert len(desk.starts()) == 3
    finish(desk, "b1/g0/2")
    finish(desk, "b1/g0/1")
    assert states(desk) == {"b1/g0/2": "succeeded", "b1/g0/1": "succeeded", "b1/g0/0": "cancelled"}
    surplus = desk.published[-1].rollout
    assert surplus.failure is not None
    assert surplus.failure.type is FailureType.CANCELLED
    assert "surplus" in surplus.failure.message
    assert session(desk, "b1/g0/0") in {e.session_id for e in desk.effects if isinstance(e, Stop)}
    assert desk.core.batches["b1"].finished_at is not None


def test_a_surplus_that_never_started_is_cancelled_without_a_session() -> None:
    desk = Desk(max_concurrent=2)
    desk.step(Arrived(batch_of(1, 2, extra=2)))
    finish(desk, "b1/g0/0")
    finish(desk, "b1/g0/1")
    assert Counter(states(desk).values()) == {"succeeded": 2, "cancelled": 2}
    assert len(desk.starts()) == 3, "one extra had begun in the room that the first result left"


def test_a_held_back_extra_takes_the_place_of_a_rollout_that_failed() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 2, extra=1, extra_start="straggler")))
    desk.run_all()
    assert len(desk.starts()) == 2
    assert finish(desk, "b1/g0/0", BAD) == ["b1/g0/2"]
    finish(desk, "b1/g0/2")
    finish(desk, "b1/g0/1")
    assert states(desk) == {"b1/g0/0": "failed", "b1/g0/2": "succeeded", "b1/g0/1": "succeeded"}


def test_only_the_last_straggler_is_hedged_and_only_when_it_is_late() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(2, 2, extra=1, extra_start="straggler")))
    desk.run_all()
    for rollout_id, after in (("b1/g0/0", 10), ("b1/g0/1", 10), ("b1/g1/0", 5)):
        desk.now += after
        assert not finish(desk, rollout_id)
    # durations 10, 20, 25: the median is 20, so the straggler is late from 30 seconds on
    assert not started(desk.step(after=4.5).effects)
    assert started(desk.step(after=0.6).effects) == ["b1/g1/2"]
    assert not started(desk.step(after=100).effects), "one hedge at a time"
    finish(desk, "b1/g1/2")
    assert states(desk)["b1/g1/1"] == "cancelled"
    assert states(desk)["b1/g0/2"] == "cancelled", "held back and never needed"
    assert desk.core.batches["b1"].finished_at is not None


def test_a_straggler_that_is_not_late_is_waited_for_and_the_scheduler_asks_to_be_woken() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 2, extra=1, extra_start="straggler", deadline_s=None)))
    desk.run_all()
    desk.now += 10
    finish(desk, "b1/g0/0")
    assert desk.core.wake_at(desk.now) == pytest.approx(desk.now + 5.0)
    assert not started(desk.step(after=4.5).effects)
    assert started(desk.step(after=0.6).effects) == ["b1/g0/2"]


def test_the_deadline_keeps_what_runs_as_partial_and_starts_nothing_more() -> None:
    desk = Desk(max_concurrent=3)
    desk.step(Arrived(batch_of(2, 2, deadline_s=50, limits={"max_attempts": 5})))
    ran, starting = session(desk, "b1/g0/0"), session(desk, "b1/g0/1")
    desk.step(Happened(ran, Trigger.INVOKED))
    step = desk.step(after=50)
    (collect,) = [e for e in step.effects if isinstance(e, Collect)]
    assert collect.session_id == ran
    assert collect.suspicion is not None
    assert collect.suspicion.type is FailureType.TIMED_OUT
    assert starting in {e.session_id for e in step.effects if isinstance(e, Stop)}
    partial = Outcome(collect.suspicion, trajectory=b"packed")
    desk.step(Collected(ran, partial))
    assert states(desk) == {
        "b1/g0/0": "failed", "b1/g0/1": "cancelled", "b1/g1/0": "cancelled", "b1/g1/1": "cancelled",
    }  # fmt: skip
    kept = next(p for p in desk.published if p.rollout.rollout_id == "b1/g0/0")
    assert kept.outcome is partial


def test_nothing_is_tried_again_after_the_deadline() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(1, 1, deadline_s=50, limits={"max_attempts": 5})))
    desk.run_all()
    s = session(desk, "b1/g0/0")
    desk.step(Happened(s, Trigger.NOTICED), after=49)
    desk.step(after=5)
    lost = Outcome(Failure(type=FailureType.INCOMPLETE_CAPTURE, message="a turn lacks evidence"))
    step = desk.step(Collected(s, lost))
    assert [p.rollout.state for p in step.published] == [S.FAILED]


def test_a_gang_starts_whole_or_waits() -> None:
    desk = Desk(max_concurrent=5)
    desk.step(Arrived(batch_of(2, 3, admission="gang")))
    assert [e.group for e in desk.starts()] == [0, 0, 0]
    finish(desk, "b1/g0/0")
    assert {e.group for e in desk.starts()} == {1, 0}, "with three free places the second group fits"
    assert Counter(e.group for e in desk.starts()) == {0: 3, 1: 3}


def test_a_gang_larger_than_the_room_starts_when_the_room_is_empty() -> None:
    desk = Desk(max_concurrent=2)
    desk.step(Arrived(batch_of(2, 3, admission="gang")))
    assert Counter(e.group for e in desk.starts()) == {0: 2}
    finish(desk, "b1/g0/0")
    finish(desk, "b1/g0/1")
    assert Counter(e.group for e in desk.starts()) == {0: 3}
    finish(desk, "b1/g0/2")
    assert Counter(e.group for e in desk.starts()) == {0: 3, 1: 2}


def test_what_is_under_way_goes_first_and_the_group_nearest_completion_before_the_others() -> None:
    desk = Desk(max_concurrent=4)
    desk.step(Arrived(batch_of(3, 2)))
    finish(desk, "b1/g1/0")  # g1 lacks one, g0 lacks two; g2 has begun in the room
    failed = Failure(type=FailureType.START_FAILED, message="no container")
    a, b = session(desk, "b1/g0/0"), session(desk, "b1/g1/1")
    desk.step(StartFailed(a, failed), StartFailed(b, failed))
    later = started(desk.step(after=5).effects)
    assert later[:1] == ["b1/g1/1"]


def test_a_pressed_engine_admits_nothing_for_its_pool_until_it_is_relieved() -> None:
    desk = Desk(max_concurrent=2)
    desk.step(Arrived(batch_of(2, 2, capture=True)), Pressure("default", True))
    assert not desk.starts()
    assert len([e for e in desk.step(Pressure("default", False)).effects if isinstance(e, Start)]) == 2
    desk.step(Pressure("default", True))
    assert not finish(desk, "b1/g0/0")
    assert started(desk.step(Pressure("default", False)).effects) == ["b1/g1/0"]


def test_an_input_that_kills_every_agent_is_quarantined_and_one_that_does_not_is_left_alone() -> None:
    desk = Desk()
    desk.step(Arrived(batch_of(2, 4, quarantine_after=3, limits={"max_attempts": 2})))
    desk.run_all()
    died = Failure(type=FailureType.AGENT_DIED, message="out of memory")

    def die(rollout_id: str) -> None:
        s = session(desk, rollout_id)
        desk.step(Happened(s, Trigger.SUSPECTED, died), Collected(s, Outcome(died)), after=5)
        desk.run_all()

    finish(desk, "b1/g1/3")
    for index in (0, 1, 2):
        die(f"b1/g1/{index}")
    assert states(desk) == {"b1/g1/3": "succeeded"}, "it can be done: the others are tried again"
    for index in (0, 1):
        die(f"b1/g0/{index}")
    assert len(states(desk)) == 1
    die("b1/g0/2")
    assert {k: v for k, v in states(desk).items() if k.startswith("b1/g0")} == {
        f"b1/g0/{i}": "cancelled" for i in range(4)
    }
    for p in desk.published[1:]:
        assert p.rollout.failure is not None
        assert p.rollout.failure.message.startswith("quarantined: 3 agents")
        assert "out of memory" in p.rollout.failure.message
    begun = {e.session_id for e in desk.starts() if e.group == 0}
    assert begun <= {e.session_id for e in desk.effects if isinstance(e, Stop)}


@settings(max_examples=200, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.floats(0, 20)), max_size=60),
    extra=st.integers(0, 3), held=st.booleans(), gang=st.booleans(), deadline=st.one_of(st.none(), st.floats(5, 200)),
    limit=st.integers(1, 7),
)  # fmt: skip
def test_under_any_policy_each_rollout_has_one_result_and_no_group_more_than_it_wants(
    plan: list[tuple[int, bool, float]], extra: int, held: bool, gang: bool, deadline: float | None, limit: int
) -> None:
    desk = Desk(max_concurrent=limit)
    policy: dict[str, Any] = {"extra": extra, "deadline_s": deadline, "admission": "gang" if gang else "stream"}
    if held:
        policy["extra_start"] = "straggler"
    desk.step(Arrived(batch_of(3, 2, limits={"rollout_timeout_s": 20_000}, **policy)))
    for pick, good, after in plan:
        desk.run_all()
        running = [s for s, r in desk.core.sessions.items() if r.state in (S.RUNNING, S.COLLECTING)]
        if running:
            s = running[pick % len(running)]
            desk.step(Happened(s, Trigger.NOTICED), Collected(s, OK if good else BAD), after=after)
    for _ in range(100):  # whatever is left ends well
        desk.run_all()
        for s, r in list(desk.core.sessions.items()):
            if r.state in (S.RUNNING, S.COLLECTING):
                desk.step(Happened(s, Trigger.NOTICED), Collected(s, OK), after=1)
    assert len(desk.published) == 3 * (2 + extra)
    assert len({p.rollout.rollout_id for p in desk.published}) == len(desk.published)
    assert all(p.rollout.state in TERMINAL for p in desk.published)
    good_by_group = Counter(p.rollout.group for p in desk.published if p.rollout.state is S.SUCCEEDED)
    assert all(n <= 2 for n in good_by_group.values())
    begun = {e.session_id for e in desk.starts()}
    assert begun == {e.session_id for e in desk.effects if isinstance(e, Stop)}
