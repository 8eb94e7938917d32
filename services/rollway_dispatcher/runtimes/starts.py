"""Starts under way, so that a stop never overtakes the start of its own session and leaves it running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class StartsInFlight:
    """Which sessions are being started right now."""

    def __init__(self) -> None:
        self._settled: dict[str, asyncio.Event] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._settled

    @contextmanager
    def begun(self, session_id: str) -> Iterator[None]:
        """The block is the session's start, from its very beginning to its outcome."""
        settled = self._settled[session_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._settled[session_id]
            settled.set()

    async def settle(self, session_id: str, within_s: float | None = None) -> None:
        """Wait until the session's start, if there is one, has an outcome; no longer than ``within_s`` seconds."""
        settled = self._settled.get(session_id)
        if settled is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(settled.wait(), within_s)
