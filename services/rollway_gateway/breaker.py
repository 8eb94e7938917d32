"""A worker's circuit breaker: steers calls away from a server that is there and fails what it is asked. Pure state.

    closed ──so many failures in a row──► open ──after a while, by a passed check──► half open ──answered──► closed
                                           ▲──────────────────── failed ────────────────┘

It steers, it does not condemn: where every other worker is open or gone, an open one is asked all the same.
"""

from __future__ import annotations

from typing import Literal

LONGEST = 16
"""An open breaker that opens again stays so for twice as long, up to so many times the first."""


class Breaker:
    __slots__ = ("_failures", "_opened_at", "_openings", "state")

    def __init__(self) -> None:
        self.state: Literal["closed", "open", "half_open"] = "closed"
        self._failures = 0
        self._openings = 0
        self._opened_at = 0.0

    def failed(self, *, now: float, limit: int) -> None:
        """A call failed by the worker's fault.

        Args:
            now: monotonic seconds.
            limit: failures in a row that open it.
        """
        self._failures += 1
        if self.state == "half_open" or (self.state == "closed" and self._failures >= limit):
            self.state, self._opened_at = "open", now
            self._openings += 1

    def answered(self) -> None:
        self.state, self._failures, self._openings = "closed", 0, 0

    def checked(self, *, now: float, open_s: float) -> None:
        """A health check passed; ``open_s`` after it opened, one call may try."""
        wait_s = open_s * min(LONGEST, 2 ** max(0, self._openings - 1))
        if self.state == "open" and now - self._opened_at >= wait_s:
            self.state = "half_open"

    def admits(self, active: int) -> bool:
        """A call may go there, with so many there already."""
        return self.state == "closed" or (self.state == "half_open" and active == 0)
