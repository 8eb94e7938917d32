"""The one poller behind a `RolloutClient`: posts batches, watches them and stops them, on a loop of its own.

Every rollout of `RolloutClient.invoke` is a batch of one, so that it can be cancelled alone. While few run, each has a
long poll at the dispatcher; past `MAX_LONG_POLLS` they take turns at `POLLS_PER_S`, so sockets stay bounded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import logging
from typing import Protocol

from rollway_driver.client.dispatcher import EMPTY_PAGE_PAUSE_S, PAGE_LIMIT, WAIT_S, AsyncDispatcherClient
from rollway_driver.client.dispatcher_calls import FinishedRollout, Page
from rollway_driver.client.errors import ClientClosed, DamagedAnswer
from rollway_driver.client.loop_thread import LoopThread, settled
from rollway_wire.batch import BatchRequest
from rollway_wire.problems import RollwayError

log = logging.getLogger(__name__)

MAX_LONG_POLLS = 64
POLLS_PER_S = 100.0
STOP_DEADLINE_S = 10.0
"""How long a cancel tries to reach the dispatcher. The rollout's own time limit ends it if this does not."""
CLOSE_GRACE_S = 10.0


class Watched(Protocol):
    """A rollout whose end is awaited."""

    @property
    def batch_id(self) -> str: ...

    def done(self) -> bool: ...

    def finish(self, finished: FinishedRollout) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Collector:
    """Safe to use from several threads and several event loops at once."""

    def __init__(self, dispatcher: AsyncDispatcherClient) -> None:
        self._dispatcher = dispatcher
        self._thread = LoopThread("rollway-collector")
        self._watched: dict[str, Watched] = {}
        self._closed = False

    @property
    def watched(self) -> list[Watched]:
        """What has been posted and is not done."""
        return [w for w in list(self._watched.values()) if not w.done()]

    def post(self, request: BatchRequest) -> str:
        """Submit and return the batch id; a wait that is interrupted stops the batch, since nobody knows its id."""
        self._check_open()
        posting = self._thread.spawn(self._post(request), finish=True)
        try:
            return posting.result()
        except BaseException:
            posting.add_done_callback(self._abandon)
            raise

    async def post_async(self, request: BatchRequest) -> str:
        """`post`, awaited from any loop."""
        self._check_open()
        posting = self._thread.spawn(self._post(request), finish=True)
        try:
            await settled(posting)
        except asyncio.CancelledError:
            posting.add_done_callback(self._abandon)
            raise
        return posting.result()

    def page(self, batch_id: str, cursor: int, wait_s: float) -> Page:
        self._check_open()
        polling = self._thread.spawn(self._dispatcher.results(batch_id, cursor, limit=PAGE_LIMIT, wait_s=wait_s))
        try:
            return polling.result()
        except cf.CancelledError as e:
            raise ClientClosed(f"client closed; batch {batch_id} goes on at the dispatcher") from e
        finally:
            polling.cancel()

    async def page_async(self, batch_id: str, cursor: int, wait_s: float) -> Page:
        self._check_open()
        polling = self._thread.spawn(self._dispatcher.results(batch_id, cursor, limit=PAGE_LIMIT, wait_s=wait_s))
        try:
            await settled(polling)
            return polling.result()
        except cf.CancelledError as e:
            raise ClientClosed(f"client closed; batch {batch_id} goes on at the dispatcher") from e
        finally:
            polling.cancel()

    def watch(self, rollout: Watched) -> None:
        """Tell ``rollout`` when it has finished or failed; it is told once, from the collector's thread."""
        self._watched[rollout.batch_id] = rollout
        self._thread.spawn(self._watch(rollout))

    def stop(self, batch_id: str) -> cf.Future[bool]:
        """Cancel a batch; the value tells whether the dispatcher took it."""
        self._check_open()
        return self._thread.spawn(self._stop(batch_id), finish=True)

    def close(self) -> None:
        """End the poller; what is watched fails with `ClientClosed`, and goes on at the dispatcher."""
        self._closed = True
        self._thread.close(CLOSE_GRACE_S, self._dispatcher.aclose())

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed")

    async def _post(self, request: BatchRequest) -> str:
        return (await self._dispatcher.submit(request)).batch_id

    def _abandon(self, posting: cf.Future[str]) -> None:
        if posting.cancelled() or posting.exception() is not None:
            return  # not accepted, as far as anyone can know
        try:
            self._thread.spawn(self._stop(posting.result()), finish=True)
        except ClientClosed:
            log.warning("batch %s was posted while the client closed; it goes on", posting.result())

    async def _stop(self, batch_id: str) -> bool:
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await self._dispatcher.cancel(batch_id)
        except (RollwayError, TimeoutError) as e:
            log.warning("batch %s could not be cancelled, its time limit will end it: %s", batch_id, e or "timed out")
            return False
        return True

    async def _watch(self, rollout: Watched) -> None:
        try:
            await self._until_done(rollout)
        except asyncio.CancelledError:
            rollout.fail(ClientClosed(f"client closed; batch {rollout.batch_id} goes on at the dispatcher"))
            raise
        except Exception as e:  # noqa: BLE001 - whoever waits on the rollout gets it, whatever it is
            rollout.fail(e)
        finally:
            self._watched.pop(rollout.batch_id, None)

    async def _until_done(self, rollout: Watched) -> None:
        while not rollout.done():
            crowded = len(self._watched) > MAX_LONG_POLLS
            page = await self._dispatcher.results(rollout.batch_id, limit=1, wait_s=0.0 if crowded else WAIT_S)
            if page.results:
                rollout.finish(page.results[0])
                return
            if page.finished:
                raise DamagedAnswer(f"batch {rollout.batch_id} is finished and holds no result")
            await asyncio.sleep(len(self._watched) / POLLS_PER_S if crowded else EMPTY_PAGE_PAUSE_S)
