"""Comparing what was captured from a worker with what its engine counted, at moments when both are at rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Protocol

import aiohttp
import structlog

from rollway_gateway.engine_account import EngineAccount
from rollway_gateway.engine_count import EngineCount, read_count
from rollway_gateway.worker import Worker

log = structlog.get_logger()

LAG_S = 0.25
"""An engine may count a token a moment after it sent it, and abort a request a moment after its client left: where the
numbers differ, two readings this far apart must be equal."""
READINGS = 4


Look = Callable[[], Awaitable[Hashable | None]]
"""Where our calls at the worker stand: equal twice, none was there in between. None: one is there now."""


class Counted(Protocol):
    """What is needed of a worker."""

    @property
    def worker_id(self) -> str: ...

    @property
    def url(self) -> str: ...

    account: EngineAccount | None


async def reconcile_all(client: aiohttp.ClientSession, workers: Iterable[Worker], within_s: float) -> None:
    """Those that are healthy and at rest; what takes longer is left for another time."""
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            if worker.healthy:
                group.create_task(reconcile(client, worker, within_s, look_at(worker)))


def look_at(worker: Worker) -> Look:
    async def look() -> int | None:
        return None if worker.active else worker.begun

    return look


async def reconcile(client: aiohttp.ClientSession, worker: Counted, within_s: float, look: Look) -> None:
    """Begin the worker's account, or compare it with the engine's counter if no call of ours is there. A worker that
    cannot be asked keeps the account it has."""
    try:
        async with asyncio.timeout(within_s):
            await _reconcile(client, worker, look)
    except (aiohttp.ClientError, OSError) as e:  # TimeoutError is an OSError
        log.info("worker_not_reconciled", worker=worker.worker_id, detail=f"{type(e).__name__}: {e}")


async def _reconcile(client: aiohttp.ClientSession, worker: Counted, look: Look) -> None:
    previous: EngineCount | None = None
    for _ in range(READINGS):
        standing = await look()
        if standing is None:
            return
        count = await _read(client, worker)
        if count is None:
            worker.account = None
            return
        if await look() != standing:
            return
        if worker.account is None or not worker.account.continued_by(count):
            _begin(worker, count)
            return
        if not count.busy and (count == previous or worker.account.agrees(count)):
            _compare(worker, worker.account, count)
            return
        previous = count
        await asyncio.sleep(LAG_S)


def _begin(worker: Counted, count: EngineCount) -> None:
    if worker.account is not None:
        lost = worker.account.state()
        log.warning(
            "worker_restarted", worker=worker.worker_id, not_compared=lost.pending, captured=lost.captured,
            detail="its engine counts anew, so what was captured since the last comparison cannot be compared",
        )  # fmt: skip
    worker.account = EngineAccount(count, now=time.time())


def _compare(worker: Counted, account: EngineAccount, count: EngineCount) -> None:
    problem = account.compare(count, now=time.time())
    if problem is not None:
        state = account.state().model_dump()
        log.warning("worker_ledger_open", worker=worker.worker_id, detail=problem, **state)


async def _read(client: aiohttp.ClientSession, worker: Counted) -> EngineCount | None:
    async with client.get(worker.url + "/metrics", allow_redirects=False) as response:
        if response.status in (404, 405):
            return None
        response.raise_for_status()
        return read_count(await response.read())
