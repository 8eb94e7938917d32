"""What may be overdue is found in order, and what is over is not kept until its time."""

from __future__ import annotations

from rollway_dispatcher.timers import LEAST_SWEPT, Timers


def test_keys_are_due_soonest_first_and_once() -> None:
    timers = Timers()
    for at, key in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        timers.set(at, key)
    assert timers.soonest() == 1.0
    assert list(timers.due(2.5)) == ["a", "b"]
    assert list(timers.due(2.5)) == []
    assert list(timers.due(3.0)) == ["c"]
    assert timers.soonest() == float("inf")


def test_the_dead_are_forgotten_long_before_their_time_and_the_living_never() -> None:
    timers, alive = Timers(), set[str]()
    for i in range(20 * LEAST_SWEPT):
        timers.set(1e6 + i, f"s{i}")
        alive.add(f"s{i}")
        alive.discard(f"s{i - 100}")
        timers.sweep(alive.__contains__)
        assert len(timers) <= LEAST_SWEPT
    assert alive <= set(timers.due(float("inf")))
