"""Scheduling lag: quantiles of the last window, in bounded memory."""

from __future__ import annotations

from rollway_dispatcher.lag import WINDOW_S, Lag


def test_a_quantile_is_at_most_a_tenth_over_what_was_noted() -> None:
    lag = Lag()
    for k in range(1, 1001):
        lag.note(k / 1000, now=100.0)
    for q in (0.5, 0.99):
        found = lag.quantile(q, now=100.0 + WINDOW_S)
        assert found is not None
        assert q <= found <= q * 1.1 + 1e-9


def test_a_window_is_shown_while_the_next_one_runs_and_then_forgotten() -> None:
    lag = Lag()
    lag.note(1.0, now=100.0)
    assert lag.quantile(0.99, now=100.0) is None, "it is not over"
    assert lag.quantile(0.99, now=110.0) is not None
    assert lag.quantile(0.99, now=119.9) is not None
    assert lag.quantile(0.99, now=120.0) is None
    lag.note(1.0, now=121.0)
    assert lag.quantile(0.99, now=145.0) is None, "two windows have passed"


def test_what_is_out_of_bounds_is_counted_at_the_bound() -> None:
    lag = Lag()
    for seconds in (-1.0, 0.0, 1e9):
        lag.note(seconds, now=100.0)
    low, high = lag.quantile(0.5, now=110.0), lag.quantile(1.0, now=110.0)
    assert low is not None
    assert high is not None
    assert low <= 1e-4 < 100 < high
