"""One dispatcher among several on a shared store: keeps its leases, takes over what others left, passes on theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any

import asyncpg
import structlog

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.database import StoreTrouble
from rollway_dispatcher.engine import Engine
from rollway_dispatcher.order import batch_of
from rollway_dispatcher.postgres_database import PASSING
from rollway_dispatcher.s3_events import Made
from rollway_dispatcher.shared_store import CHANNEL, SharedStore
from rollway_dispatcher.step import CancelBatch, CancelRollout, News
from rollway_wire.rollout import Report

log = structlog.get_logger()

RECONNECT_S = 1.0
REPORTS_AT_ONCE = 1000
"""Reports of other dispatchers' agents that wait to be passed on; more are dropped, as a push may be."""


class Fleet:
    def __init__(
        self, store: SharedStore, engine: Engine, bell: Bell, url: str, lease_s: float, look_again: Callable[[], None]
    ) -> None:
        """
        Args:
            look_again: called before the sessions of a batch taken over are asked for.
        """
        self._look_again = look_again
        self._store, self._engine, self._bell = store, engine, bell
        self._url, self._lease_s = url, lease_s
        self._reports: asyncio.Queue[Report] = asyncio.Queue(REPORTS_AT_ONCE)

    # -- passing on

    async def pass_on(self, news: CancelBatch | CancelRollout) -> None:
        """To whoever owns the batch. Repeat it until it shows: a message may be lost."""
        if isinstance(news, CancelBatch):
            await self._store.tell({"cancel": news.batch_id, "reason": news.reason})
        else:
            await self._store.tell({"cancel": news.batch_id, "ordinal": news.ordinal, "reason": news.reason})

    def pass_on_report(self, report: Report) -> None:
        with suppress(asyncio.QueueFull):
            self._reports.put_nowait(report)

    async def pass_on_made(self, made: list[Made]) -> None:
        """To whoever works on the batches that these objects are results of; the others are nobody's.

        Raises:
            StoreTrouble: some may not have been passed on.
        """
        theirs = await self._store.elsewhere({batch_of(m.key) or "" for m in made})
        for m in made:
            if batch_of(m.key) in theirs:
                await self._store.tell({"made": [m.bucket, m.key]})

    def _hear(self, message: dict[str, Any]) -> None:
        if "ring" in message:
            self._bell.ring([message["ring"]])
        elif "report" in message:
            self._engine.report(Report.model_validate(message["report"]))
        elif "made" in message:
            self._engine.saved(*message["made"])
        elif "cancel" in message:
            batch_id, reason = message["cancel"], message["reason"]
            news: News = CancelBatch(batch_id, reason)
            if "ordinal" in message:
                news = CancelRollout(batch_id, message["ordinal"], reason)
            self._engine.tell(news)

    # -- tasks

    async def keep(self) -> None:
        """Renew, and take over, three times in a lease's length."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._store.keep()
                for batch, stops in await self._store.unfinished(self._engine.known):
                    log.warning("batch_taken_over", batch_id=batch.batch_id, rollouts=len(batch.rollouts))
                    self._look_again()
                    self._engine.take_over(batch, stops)
            except StoreTrouble as e:
                log.warning("lease_not_kept", why=str(e))

    async def send_reports(self) -> None:
        while True:
            report = await self._reports.get()
            try:
                await self._store.tell({"report": report.model_dump(mode="json", exclude_none=True)})
            except StoreTrouble as e:
                log.warning("report_not_passed_on", session_id=report.session_id, why=str(e))

    async def listen(self) -> None:
        """Hear the others. After a lost connection everybody who waits looks again: what was said meanwhile is gone."""
        while True:
            try:
                db = await asyncpg.connect(self._url, timeout=10)
            except PASSING as e:
                log.warning("not_listening", why=str(e))
                await asyncio.sleep(RECONNECT_S)
                continue
            gone = asyncio.Event()
            db.add_termination_listener(lambda _, gone=gone: gone.set())
            try:
                await db.add_listener(CHANNEL, lambda *said: self._hear(json.loads(said[3])))
                self._bell.ring_all()
                await gone.wait()
            except PASSING as e:
                log.warning("not_listening", why=str(e))
            finally:
                with suppress(*PASSING):
                    await db.close(timeout=2)


class SharedPace:
    """``async with``: the next place in an ARN's calls, among all dispatchers. Waits while the database is away."""

    def __init__(self, store: SharedStore, arn: str, rate: float) -> None:
        self._store, self._arn, self._rate = store, arn, rate

    async def __aenter__(self) -> None:
        while True:
            try:
                wait = await self._store.slot(self._arn, self._rate)
            except StoreTrouble as e:
                log.warning("no_slot", why=str(e))
                await asyncio.sleep(RECONNECT_S)
            else:
                await asyncio.sleep(wait)
                return

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


@asynccontextmanager
async def running_fleet(fleet: Fleet) -> AsyncIterator[Fleet]:
    """A bug in one of its tasks is logged; without them others take this dispatcher's batches over."""

    async def told(work: Any, name: str) -> None:
        try:
            await work
        except Exception:
            log.exception("fleet_broke", task=name)

    works = {"leases": fleet.keep(), "reports": fleet.send_reports(), "listen": fleet.listen()}
    tasks = [asyncio.create_task(told(work, name), name=name) for name, work in works.items()]
    try:
        yield fleet
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
