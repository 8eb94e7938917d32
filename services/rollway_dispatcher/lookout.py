"""Notices results in S3 by listing a batch's prefix: the truth, for agents that cannot or do not push."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.order import Order
from rollway_dispatcher.rollout import Batch, Rollout
from rollway_dispatcher.step import Happened, News
from rollway_kit.object_store import ObjectStore
from rollway_wire.ids import session_id_of
from rollway_wire.problems import RollwayError

log = structlog.get_logger()

KEYS_PER_REQUEST = 1000
PUSHING_FACTOR = 10
"""Batches whose running agents all report, or whose results a queue tells of, are listed so much more rarely: only what
was lost on the way needs it."""


class Announced:
    """Where a queue tells of results, as far as it has been seen to: experiments, by bucket. A queue that is set up for
    another prefix, or no longer works, must not keep listing from noticing."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def heard(self, order: Order) -> None:
        self._seen.add((order.s3_bucket, order.experiment_id))

    def missed(self, order: Order) -> None:
        """A result of it was there that the queue had not told of."""
        self._seen.discard((order.s3_bucket, order.experiment_id))

    def forget(self) -> None:
        self._seen.clear()

    def covers(self, order: Order) -> bool:
        return (order.s3_bucket, order.experiment_id) in self._seen


class Lookout:
    """One batch's listings: at most one request per ``poll_interval_s``, however many keys the batch has."""

    def __init__(
        self, objects: ObjectStore, poll_interval_s: float, tell: Callable[[News], None], announced: Announced
    ) -> None:
        self._objects = objects
        self._announced = announced
        self._interval_s = poll_interval_s
        self._tell = tell

    async def keep(self, batch: Batch) -> None:
        """List until the batch has no unfinished rollout."""
        order, skipped, reachable = batch.order, 0, True
        pause = self._interval_s
        while batch.rollouts:
            await asyncio.sleep(pause)
            pause = self._interval_s
            running = batch.running.values()
            skipped += 1
            told = self._announced.covers(order) or _all_report(running)
            if not running or (told and skipped < PUSHING_FACTOR):
                continue
            skipped = 0
            try:
                keys = await self._list(order)
            except RollwayError as e:
                if reachable:
                    log.warning("listing_failed", batch_id=batch.batch_id, why=e.detail)
                reachable = False
                continue
            reachable = True
            self._notice(keys, batch)
            pause = self._interval_s * max(1, -(-len(keys) // KEYS_PER_REQUEST))

    async def _list(self, order: Order) -> list[str]:
        return [o.key for o in await self._objects.list(order.s3_bucket, f"{order.exp_id}/")]

    def _notice(self, keys: Iterable[str], batch: Batch) -> None:
        running = {r.session_id for r in batch.running.values()}
        for key in keys:
            session_id = session_id_of(key)
            if session_id in running and session_id is not None:
                self._announced.missed(batch.order)
                self._tell(Happened(session_id, Trigger.NOTICED))


def _all_report(running: Iterable[Rollout]) -> bool:
    return all(r.reports for r in running)
