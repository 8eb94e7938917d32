"""The rate that invoke and stop share, per runtime ARN, adapted to what the service takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiolimiter import AsyncLimiter

CUT, RISE, LEAST = 0.5, 0.1, 0.02
"""Additive increase, multiplicative decrease: a throttled call cuts the rate to CUT of itself, a second without one
raises it by RISE of the limit, and it never falls below LEAST of the limit."""
EVERY_S = 1.0
"""The rate changes at most this often, in either direction: throttled calls come in bursts, and say one thing."""


Pace = Callable[[str, float], AbstractAsyncContextManager[Any]]
"""For an ARN and a rate: ``async with`` waits for the next place in its calls."""


def own_pace(_: str, rate: float) -> AbstractAsyncContextManager[Any]:
    """Of this process alone."""
    return AsyncLimiter(1, 1 / rate)


class Tps:
    """One ARN's rate. Calls are evenly spaced, since a burst at the full rate would be throttled by the service's own
    one-second window. Others may use the same quota: the rate is what the service has been seen to take, up to the
    limit."""

    def __init__(
        self, limit: float, clock: Callable[[], float] = time.monotonic, *, arn: str = "", pace: Pace = own_pace
    ) -> None:
        self.limit = limit
        self._arn, self._pace = arn, pace
        self._clock = clock
        self._changed_at = float("-inf")
        self._set(limit)

    def _set(self, rate: float) -> None:
        self.rate = rate
        self.limiter = self._pace(self._arn, rate)

    def throttled(self) -> None:
        """The service refused a call for its rate."""
        if self._due():
            self._set(max(self.limit * LEAST, self.rate * CUT))

    def accepted(self) -> None:
        if self.rate < self.limit and self._due():
            self._set(min(self.limit, self.rate + self.limit * RISE))

    def lower(self, limit: float) -> None:
        """Another batch names a lower limit."""
        self.limit = limit
        if self.rate > limit:
            self._set(limit)

    def _due(self) -> bool:
        now = self._clock()
        if now - self._changed_at < EVERY_S:
            return False
        self._changed_at = now
        return True


class TpsBudgets:
    """One rate per ARN. Batches that name different limits for one ARN share the lowest."""

    def __init__(self, pace: Pace = own_pace) -> None:
        self._known: dict[str, Tps] = {}
        self._pace = pace

    def of(self, arn: str, limit: float) -> Tps:
        known = self._known.get(arn)
        if known is None:
            known = self._known[arn] = Tps(limit, arn=arn, pace=self._pace)
        elif limit < known.limit:
            known.lower(limit)
        return known
