"""Wakes those who wait for a batch's next result."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

REST_S = 0.02
"""Between two rings for one batch. Under load a batch has news two hundred times a second, and each ring makes everyone
who waits read and answer."""


class Bell:
    """Wait first, look, then sleep: a ring between the look and the sleep is not missed."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._resting: dict[str, bool] = {}
        """Batches that have just been rung for, and whether they are to be rung for again after the rest."""

    def listen(self, batch_id: str) -> asyncio.Future[None]:
        """A future done at the batch's next ring. Give it to `ignore` when it is no longer wanted."""
        heard = asyncio.get_running_loop().create_future()
        self._waiting[batch_id].add(heard)
        return heard

    def ignore(self, batch_id: str, heard: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(batch_id)
        if waiting is not None:
            waiting.discard(heard)
            if not waiting:
                del self._waiting[batch_id]

    def ring(self, batch_ids: Iterable[str]) -> None:
        for batch_id in batch_ids:
            if batch_id in self._resting:
                self._resting[batch_id] = True
            else:
                self._ring(batch_id)

    def _ring(self, batch_id: str) -> None:
        self._resting[batch_id] = False
        asyncio.get_running_loop().call_later(REST_S, self._rested, batch_id)
        for heard in self._waiting.pop(batch_id, ()):
            if not heard.done():
                heard.set_result(None)

    def _rested(self, batch_id: str) -> None:
        if self._resting.pop(batch_id):
            self._ring(batch_id)

    def ring_all(self) -> None:
        self.ring(list(self._waiting))
