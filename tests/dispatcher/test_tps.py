"""The rate that adapts: what a service refuses cuts it, what it takes brings it back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rollway_dispatcher.runtimes.tps import CUT, LEAST, RISE, Tps, TpsBudgets


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_of_refusals_cuts_once_and_the_next_one_again() -> None:
    clock = Clock()
    tps = Tps(25.0, clock)
    for _ in range(10):
        tps.throttled()
    assert tps.rate == 25.0 * CUT
    clock.now += 1
    tps.throttled()
    assert tps.rate == 25.0 * CUT**2
    for _ in range(100):
        clock.now += 1
        tps.throttled()
    assert tps.rate == 25.0 * LEAST


def test_it_comes_back_step_by_step_and_never_over_the_limit() -> None:
    clock = Clock()
    tps = Tps(20.0, clock)
    tps.throttled()
    tps.accepted()
    assert tps.rate == 10.0, "the same second says one thing"
    seen = []
    for _ in range(8):
        clock.now += 1
        tps.accepted()
        seen.append(tps.rate)
    assert seen[:2] == pytest.approx([10 + 20 * RISE, 10 + 40 * RISE])
    assert max(seen) == seen[-1] == 20.0


def test_batches_on_one_arn_share_the_lowest_limit() -> None:
    budgets = TpsBudgets()
    first = budgets.of("arn", 25.0)
    assert budgets.of("arn", 10.0) is first
    assert (first.limit, first.rate) == (10.0, 10.0)
    assert budgets.of("arn", 50.0).limit == 10.0
    assert budgets.of("other", 25.0) is not first


def test_a_changed_rate_spaces_the_calls_after_it() -> None:
    clock = Clock()
    tps = Tps(1000.0, clock)
    before = tps.limiter
    tps.throttled()
    assert tps.limiter is not before
    assert tps.limiter.time_period == pytest.approx(1 / (1000.0 * CUT))
