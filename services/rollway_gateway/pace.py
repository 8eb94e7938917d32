"""How much of what takes long is done before the event loop looks at its sockets again.

A loop runs everything that is ready first. With a thousand calls in flight that may be hundreds of requests to read and
answers to take, a millisecond each, and a health check waits behind all of them. So such steps wait their turn, first
come, first served, and as many are let on at once as take about `BUDGET_S` by what the last ones took. What is short
(reading from sockets, an event of a stream) takes no turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

BUDGET_S = 0.004
"""Of one iteration of the loop."""
_UNIT_BYTES = 16 * 1024
"""A step is measured in these, and one more: what it costs besides."""


class Pace:
    """Of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self._let_on = 0.0
        """Units since `_since`; 0: nobody took a turn lately."""
        self._since = 0.0
        self._unit_s = BUDGET_S
        """What a unit takes, with all that the loop does beside it; at first as much as there is."""

    async def turn(self, size: int) -> None:
        """Until it may do what takes long. At once where nobody else does.

        Args:
            size: bytes of what is to be read.
        """
        loop, units = asyncio.get_running_loop(), 1 + size / _UNIT_BYTES
        if not self._let_on:
            self._let_on, self._since = units, time.monotonic()
            loop.call_soon(self._next)
            return
        waiter = loop.create_future()
        self._waiting.append((waiter, units))
        await waiter

    def _next(self) -> None:
        now = time.monotonic()
        self._unit_s += ((now - self._since) / self._let_on - self._unit_s) / 4
        self._let_on, self._since = 0.0, now
        while self._waiting:
            waiter, units = self._waiting[0]
            if self._let_on and (self._let_on + units) * self._unit_s > BUDGET_S:
                break
            self._waiting.popleft()
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)
                self._let_on += units
        if self._let_on:
            asyncio.get_running_loop().call_soon(self._next)  # after those that waited
