"""One account per engine over all processes: each captures some of its tokens, the engine counts them all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

import aiohttp
import structlog

from rollway_gateway.engine_account import EngineAccount
from rollway_gateway.processes.totals import Totals
from rollway_gateway.reconcile import reconcile
from rollway_wire.gateway import WorkerLedger
from rollway_wire.problems import RollwayError

log = structlog.get_logger()

Ask = Callable[[], Awaitable[Sequence[Sequence[Totals]]]]
"""Each process's totals, in order.

Raises:
    RollwayError: one does not answer.
"""
Worker = tuple[str, str]
"""Pool and worker id."""


class Engine:
    """One worker over all processes, as `reconcile` knows a worker."""

    def __init__(self, worker_id: str, url: str) -> None:
        self.worker_id, self.url = worker_id, url
        self.account: EngineAccount | None = None
        self._seen: Sequence[Totals] = ()

    def take(self, said: Sequence[Totals]) -> None:
        """What every process says now; what is new since the last time goes into the account.

        What a process captured in its last moments nobody knows any more: any number of tokens may then be its.
        """
        if self.account is not None:
            known = {total.run: total for total in self._seen}
            for total in said:
                before = known.pop(total.run, None)
                if before is None:
                    self.account.add(total.captured, besides=None)
                else:
                    bounded = total.unbounded == before.unbounded
                    more = total.besides - before.besides if bounded else None
                    self.account.add(total.captured - before.captured, besides=more)
        self._seen = said

    def standing(self) -> Hashable | None:
        """Where calls stand: equal twice, none was there in between. None: one is there now."""
        return None if any(t.active for t in self._seen) else tuple((t.run, t.begun) for t in self._seen)


class Accounts:
    """Of every worker that all processes know and whose engine counts."""

    def __init__(self, ask: Ask, *, within_s: float) -> None:
        """
        Args:
            within_s: most that one comparison takes.
        """
        self._ask, self._within_s = ask, within_s
        self._engines: dict[Worker, Engine] = {}
        self._comparing, self._asking = asyncio.Lock(), asyncio.Lock()

    async def refresh(self) -> None:
        """Take what the processes say now.

        Raises:
            RollwayError: one does not answer.
        """
        async with self._asking:  # what was said later must be taken later
            self._take(await self._ask())

    def _take(self, answers: Sequence[Sequence[Totals]]) -> None:
        said: dict[Worker, list[Totals]] = {}
        for totals in answers:
            for total in totals:
                said.setdefault((total.pool, total.worker_id), []).append(total)
        whole = {worker: found for worker, found in said.items() if len(found) == len(answers)}
        self._engines = {worker: engine for worker, engine in self._engines.items() if worker in whole}
        for worker, found in whole.items():
            engine = self._engines.get(worker)
            if engine is None or engine.url != found[0].url:
                engine = self._engines[worker] = Engine(worker[1], found[0].url)
            engine.take(found)

    async def reconcile(self, client: aiohttp.ClientSession, *, only_stale: bool = False) -> None:
        """Compare with the engines' counters, where no process has a call there; a process that does not answer leaves
        it to another time."""
        async with self._comparing:
            try:
                await self.refresh()
            except RollwayError as e:
                log.info("workers_not_reconciled", detail=e.detail)
                return
            async with asyncio.TaskGroup() as group:
                for worker, engine in self._engines.items():
                    if engine.account is None or engine.account.stale or not only_stale:
                        group.create_task(reconcile(client, engine, self._within_s, self._look(worker, engine)))

    def _look(self, worker: Worker, engine: Engine) -> Callable[[], Awaitable[Hashable | None]]:
        async def look() -> Hashable | None:
            try:
                await self.refresh()
            except RollwayError:
                return None
            return engine.standing() if self._engines.get(worker) is engine else None

        return look

    def ledgers(self, pool: str) -> Mapping[str, WorkerLedger]:
        """By worker id, as of the last refresh."""
        return {
            worker_id: engine.account.state()
            for (name, worker_id), engine in self._engines.items()
            if name == pool and engine.account is not None
        }
