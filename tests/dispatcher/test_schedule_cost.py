"""A piece of news costs the scheduler what it changes, however many rollouts are under way. Counted, not timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.rollout import Batch
from rollway_dispatcher.step import Arrived, Collected, Happened, Heard, News, StartFailed, Stopped
from rollway_wire.batch import RolloutState
from rollway_wire.failures import Failure, FailureType
from tests.dispatcher.test_schedule import OK, Desk, batch_of

FEW, MANY = 80, 4000


def lines(work: Callable[[], Any]) -> int:
    """How many lines of Python ``work`` runs, each turn of a loop anew."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()  # what it ends, and who is told of it, is not the scheduler's
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count


def running(n: int) -> tuple[Desk, Batch]:
    """``n`` rollouts of which all but ten run, and another batch as large that waits for room."""
    desk = Desk(max_concurrent=n)
    batch = batch_of(n // 8, 8)
    desk.step(Arrived(batch), Arrived(batch_of(n // 8, 8, "b2")))
    desk.step(*[Happened(s, Trigger.INVOKED) for s in list(desk.core.sessions)[:-10]])
    desk.step(after=0.3)  # timers are swept now and then
    return desk, batch


def cost(n: int) -> dict[str, int]:
    desk, batch = running(n)
    session_of = [r.session_id or "" for r in batch.rollouts.values()]
    died = Failure(type=FailureType.START_FAILED, message="no")
    starting = next(s for s, r in desk.core.sessions.items() if r.state is RolloutState.STARTING)
    news: dict[str, News] = {
        "heard": Heard(session_of[0]), "noticed": Happened(session_of[1], Trigger.NOTICED),
        "collected": Collected(session_of[1], OK), "stopped": Stopped(session_of[1]),
        "start failed": StartFailed(starting, died),
    }  # fmt: skip
    found = {what: lines(lambda item=item: desk.step(item, after=0.3)) for what, item in news.items()}
    found["nothing"] = lines(lambda: desk.step(after=0.3))
    found["when next"] = lines(lambda: desk.core.wake_at(desk.now))
    return found


def test_news_cost_the_same_with_fifty_times_as_many_rollouts() -> None:
    few, many = cost(FEW), cost(MANY)
    assert min(few.values()) > 0
    assert {what: n for what, n in many.items() if n > few[what] + 20} == {}, few
