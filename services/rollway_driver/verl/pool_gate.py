"""The gate of the gateways' pool around a step: open while any group is, fenced and drained before the last one is
tagged.

verl updates weights as soon as it has seen the last terminal tag. A call that were still running then, or one that came
in later, would sample under mixed weights, since vLLM's HTTP routes know nothing of the update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from rollway_wire.gateway import PoolState


class Gateways(Protocol):
    """What the driver asks of the gateways' admin API: done by all of them, or an error."""

    async def open_pool(self, pool: str, policy_version: int | None = None) -> Sequence[PoolState]: ...

    async def fence_pool(self, pool: str, *, drain_timeout_s: float, abort: bool) -> Sequence[PoolState]: ...


class PoolGate:
    """One pool's gate, shared by the batches of a run (a refill's batch overlaps the one it refills)."""

    def __init__(self, gateways: Gateways, pool: str, drain_timeout_s: float) -> None:
        self._gateways = gateways
        self._pool = pool
        self._drain_timeout_s = drain_timeout_s
        self._open: set[str] = set()
        self._lock = asyncio.Lock()

    async def enter(self, uids: Iterable[str], policy_version: int) -> None:
        """Open the pool for these groups. They count as open also when a gateway could not be reached."""
        async with self._lock:
            self._open.update(uids)
            await self._gateways.open_pool(self._pool, policy_version)

    async def leave(self, uid: str, tag: Callable[[bool], Awaitable[None]]) -> None:
        """Close a group: ``tag`` writes its terminal status, after fence and drain when it is the last.

        ``tag`` is told whether it is the last one, and is called whatever happens to the fence: verl would wait forever
        for it.

        Raises:
            RollwayError: the pool could not be fenced.
        """
        async with self._lock:
            self._open.discard(uid)
            last = not self._open
            try:
                if last:
                    await self._gateways.fence_pool(self._pool, drain_timeout_s=self._drain_timeout_s, abort=True)
            finally:
                await tag(last)
