"""`BatchResult` and `AsyncBatchResult`: many payloads as one batch at the dispatcher, one item each as they finish."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from rollway_driver.client.batch_item import BatchItem, finished_item, rejected_item
from rollway_driver.client.call import json_body
from rollway_driver.client.collector import Collector
from rollway_driver.client.dispatcher import EMPTY_PAGE_PAUSE_S, WAIT_S
from rollway_driver.client.dispatcher_calls import Page
from rollway_driver.client.loop_thread import settled
from rollway_driver.client.progress import Bar
from rollway_wire.batch import BatchRequest, Group
from rollway_wire.problems import BadRequest

log = logging.getLogger(__name__)

MakeRequest = Callable[[list[Group]], BatchRequest]


class _Run:
    """One pass over a batch: which payload each group is, and how far its results have been read. No I/O."""

    def __init__(
        self, payloads: Sequence[Mapping[str, Any]], timeout: float, log_interval: float, progress: bool
    ) -> None:
        self.bar = Bar(len(payloads), shown=progress)
        self.groups: list[Group] = []
        self.rejected: list[BatchItem] = []
        for index, payload in enumerate(payloads):
            try:
                json_body(dict(payload))
                self.groups.append(Group(group_id=str(index), payload=dict(payload)))
            except (BadRequest, ValueError, TypeError) as e:
                self.rejected.append(rejected_item(e, index))
                self.bar.add(None, failed=True)
        self.batch_id = ""
        self.cursor = 0
        self.finished = not self.groups
        self._timeout, self._log_interval = timeout, log_interval
        self._done = self._failed = 0
        self._begun = self._logged = time.monotonic()

    def wait_s(self) -> float:
        """How long the next poll may wait without delaying a progress line."""
        return max(0.0, min(WAIT_S, self._logged + self._log_interval - time.monotonic()))

    def take(self, page: Page) -> list[BatchItem]:
        """The page's items, in the order they finished."""
        waited = time.monotonic() - self._begun
        items = [finished_item(f, int(f.rollout.group_id), waited, self._timeout) for f in page.results]
        self.cursor, self.finished = page.cursor, page.finished
        self._done += len(items)
        self._failed += sum(item.failure is not None for item in items)
        for finished in page.results:
            self.bar.add(finished.rollout.rewards, failed=finished.rollout.failure is not None)
        if self.finished or time.monotonic() - self._logged >= self._log_interval:
            self._logged = time.monotonic()
            log.info(
                "batch %s: %d of %d done, %d failed, %.0f s",
                self.batch_id, self._done, len(self.groups), self._failed, waited,
            )  # fmt: skip
        return items

    def leave(self) -> None:
        """Say what an iteration that ends early leaves behind."""
        self.bar.close()
        if self.batch_id and not self.finished:
            log.warning(
                "batch %s was left with %d of %d rollouts not read; they go on at the dispatcher unless cancelled",
                self.batch_id, len(self.groups) - self._done, len(self.groups),
            )  # fmt: skip


class _Batch:
    def __init__(
        self,
        collector: Collector,
        make_request: MakeRequest,
        payloads: Sequence[Mapping[str, Any]],
        timeout: float,
        log_interval: float,
        *,
        progress: bool = False,
    ) -> None:
        self.payloads = list(payloads)
        self.batch_id: str | None = None
        """At the dispatcher, once iteration has posted it."""
        self._collector, self._make_request = collector, make_request
        self._timeout, self._log_interval, self._progress = timeout, log_interval, progress


class BatchResult(_Batch):
    """Iterate it for a `BatchItem` per payload, in the order they finish. Each iteration runs the payloads anew.

    Leaving the loop early leaves the rest running (and logs it); `cancel` stops them.

    Raises, while iterating:
        RollwayError: the dispatcher refused the batch, or stayed out of reach; a batch already posted goes on there.
    """

    def __iter__(self) -> Iterator[BatchItem]:
        run = _Run(self.payloads, self._timeout, self._log_interval, self._progress)
        yield from run.rejected
        if run.finished:
            return
        try:
            self.batch_id = run.batch_id = self._collector.post(self._make_request(run.groups))
            while not run.finished:
                page = self._collector.page(run.batch_id, run.cursor, run.wait_s())
                yield from run.take(page)
                if not page.results and not page.finished:
                    time.sleep(EMPTY_PAGE_PAUSE_S)
        finally:
            run.leave()

    def cancel(self) -> bool:
        """Stop what still runs; its items come as failures. True when the dispatcher took it."""
        return self.batch_id is not None and self._collector.stop(self.batch_id).result()


class AsyncBatchResult(_Batch):
    """`BatchResult` for ``async for``. Cancelling the iterating task before the batch is posted stops the batch."""

    async def __aiter__(self) -> AsyncIterator[BatchItem]:
        run = _Run(self.payloads, self._timeout, self._log_interval, self._progress)
        for item in run.rejected:
            yield item
        if run.finished:
            return
        try:
            self.batch_id = run.batch_id = await self._collector.post_async(self._make_request(run.groups))
            while not run.finished:
                page = await self._collector.page_async(run.batch_id, run.cursor, run.wait_s())
                for item in run.take(page):
                    yield item
                if not page.results and not page.finished:
                    await asyncio.sleep(EMPTY_PAGE_PAUSE_S)
        finally:
            run.leave()

    async def cancel_async(self) -> bool:
        """`BatchResult.cancel`, awaited."""
        if self.batch_id is None:
            return False
        stopping = self._collector.stop(self.batch_id)
        await settled(stopping)
        return stopping.result()
