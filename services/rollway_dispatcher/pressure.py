"""Watches how much the engines of each pool have to do, and tells the scheduler when it is too much.

A rollout admitted while every engine has a queue waits for a slot there, holds a container, and fills caches that the
rollouts under way then lose to preemption. So nothing is admitted for a pool while all its engines are full, and what
runs goes on. An engine is full when more requests wait than `waiting_high`, or its KV cache is used over `kv_high`; it
has room again when nothing waits and the cache is under `kv_low`. Between the two it stays what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from rollway_dispatcher.gateway import GatewayClient
from rollway_dispatcher.step import News, Pressure
from rollway_wire.gateway import EngineLoad
from rollway_wire.problems import RollwayError

log = structlog.get_logger()

SILENT_LIMIT = 5
"""Unanswered questions in a row after which a pool that was full counts as relieved: the calls themselves will tell."""


@dataclass(frozen=True, slots=True)
class Marks:
    waiting_high: int
    kv_high: float
    kv_low: float

    def judge(self, loads: Iterable[EngineLoad], *, pressed: bool) -> bool:
        """Whether a pool's engines are all full; ``pressed``: whether they were. A pool that says nothing is not."""
        known = list(loads)
        return bool(known) and all(self._full(load, pressed=pressed) for load in known)

    def _full(self, load: EngineLoad, *, pressed: bool) -> bool:
        kv = 0.0 if load.kv_usage is None else load.kv_usage
        if load.waiting > self.waiting_high or kv > self.kv_high:
            return True
        return pressed and (load.waiting > 0 or kv > self.kv_low)


class PressureWatch:
    def __init__(
        self, gateway: GatewayClient, marks: Marks, every_s: float, pools: Callable[[], set[str]],
        tell: Callable[[News], None],
    ) -> None:  # fmt: skip
        """
        Args:
            pools: those that batches under way are captured in.
        """
        self._gateway, self._marks, self._every_s = gateway, marks, every_s
        self._pools, self._tell = pools, tell
        self._pressed: set[str] = set()
        self._silent: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            pools = self._pools()
            for pool in self._pressed - pools:
                self._change(pool, pressed=False)
            for pool in sorted(pools):
                await self._look(pool)

    async def _look(self, pool: str) -> None:
        pressed = pool in self._pressed
        try:
            loads = await self._gateway.loads(pool)
        except RollwayError as e:
            self._silent[pool] = self._silent.get(pool, 0) + 1
            if pressed and self._silent[pool] >= SILENT_LIMIT:
                log.warning("pressure_unknown", pool=pool, why=e.detail)
                self._change(pool, pressed=False)
            return
        self._silent.pop(pool, None)
        if (now := self._marks.judge(loads, pressed=pressed)) != pressed:
            self._change(pool, pressed=now)

    def _change(self, pool: str, *, pressed: bool) -> None:
        (self._pressed.add if pressed else self._pressed.discard)(pool)
        log.info("engines_full" if pressed else "engines_have_room", pool=pool)
        self._tell(Pressure(pool, pressed))
