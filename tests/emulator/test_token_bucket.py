"""The bucket never lets more through than it says, and never less than it owes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_emulator.token_bucket import TokenBucket

GAPS = st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=60)


def _passed(bucket: TokenBucket, gaps: list[float]) -> list[float]:
    """The times at which a call passed."""
    now, passed = 100.0, []
    for gap in gaps:
        now += gap
        if bucket.take(now):
            passed.append(now)
    return passed


@given(gaps=GAPS, rate=st.floats(0.1, 50), burst=st.floats(1, 20))
def test_no_window_passes_more_than_burst_and_rate_allow(gaps: list[float], rate: float, burst: float) -> None:
    passed = _passed(TokenBucket(rate, burst), gaps)
    for i, begin in enumerate(passed):
        for j in range(i, len(passed)):
            assert j - i + 1 <= burst + rate * (passed[j] - begin) + 1e-6


@given(rate=st.floats(0.1, 50), burst=st.integers(1, 20))
def test_a_rested_bucket_passes_its_whole_burst_and_no_more(rate: float, burst: int) -> None:
    bucket = TokenBucket(rate, burst)
    for now in (0.0, 1e6):
        assert [bucket.take(now) for _ in range(burst + 1)] == [True] * burst + [False]


def test_a_call_once_a_period_always_passes_and_refusals_cost_nothing() -> None:
    bucket = TokenBucket(rate=4, burst=1)
    assert bucket.take(0)
    for period in range(1, 20):
        assert not bucket.take(period * 0.25 - 0.125)
        assert bucket.take(period * 0.25)


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket = TokenBucket(rate=1, burst=1)
    assert bucket.take(10)
    assert not bucket.take(5)
    assert not bucket.take(10.5)
    assert bucket.take(11)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0), (1, 0.9)])
def test_a_bucket_that_could_never_pass_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenBucket(rate, burst)
