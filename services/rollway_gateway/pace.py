"""Whose turn it is to do what takes long: one such step in each iteration of the event loop, first come, first served.

A loop runs everything that is ready before it looks at its sockets again. With a thousand calls in flight that may be
hundreds of requests to read and answers to take, a millisecond each, and a health check waits behind all of them. What
is short (reading from sockets, an event of a stream) takes no turn.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """Of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        """Somebody has this iteration's turn."""

    async def turn(self) -> None:
        """Until nobody else does anything long before the loop's next iteration. At once where nobody does."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next)
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)  # after the one who waited
                return
        self._taken = False
