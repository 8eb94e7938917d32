"""When to try an HTTP call again, and how long to wait first. Pure: the transports do the sleeping.

Every call the clients make may be repeated: reads are reads, a batch carries an idempotency key, and the gateway's
writes set a state. So a lost connection, a 429, 502, 503, 504 or a damaged answer is tried again until the deadline.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rollway_driver.client.errors import DamagedAnswer
from rollway_wire.problems import RollwayError

RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
MAX_DAMAGED = 4
"""Damaged answers in one call before giving up: a cut connection mends at once, a wrong service never."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient a client is.

    Raises:
        ValueError: a negative deadline, or waits that are not 0 < first_wait_s <= max_wait_s.
    """

    deadline_s: float = 120.0
    """Seconds from a call's first failure until its error is raised: time for a service to restart. 0 never retries."""
    first_wait_s: float = 0.1
    max_wait_s: float = 5.0

    def __post_init__(self) -> None:
        if self.deadline_s < 0 or not 0 < self.first_wait_s <= self.max_wait_s:
            raise ValueError(f"retry policy needs deadline_s >= 0 and 0 < first_wait_s <= max_wait_s, got {self}")


@dataclass(slots=True)
class Attempts:
    """One call's failures so far. `after` tells the wait before the next attempt, or raises the error."""

    policy: RetryPolicy
    clock: Callable[[], float] = time.monotonic
    _count: int = field(default=0, init=False)
    _damaged: int = field(default=0, init=False)
    _give_up_at: float = field(default=0.0, init=False)

    def after(self, error: RollwayError) -> float:
        """Seconds to wait: exponential with jitter, at least the server's Retry-After.

        Raises:
            RollwayError: ``error`` itself, when another attempt cannot mend it or would come after the deadline.
        """
        now = self.clock()
        if self._count == 0:
            self._give_up_at = now + self.policy.deadline_s
        self._damaged += isinstance(error, DamagedAnswer)
        if error.status not in RETRYABLE_STATUSES or self._damaged >= MAX_DAMAGED:
            raise error
        backoff = min(self.policy.max_wait_s, self.policy.first_wait_s * 2.0 ** min(self._count, 30))
        wait = max(backoff * random.uniform(0.5, 1.0), error.retry_after_s or 0.0)
        self._count += 1
        if now + wait > self._give_up_at:
            raise error
        return wait
