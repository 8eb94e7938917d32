"""The dispatcher's typed client, sync and async: a method per route, each safe to repeat and patient with restarts.

Past 300 lines because it is the whole API twice, and the two are read side by side.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from rollway_driver.client import dispatcher_calls as calls
from rollway_driver.client.dispatcher_calls import ArrowPage, FinishedRollout, Page
from rollway_driver.client.progress import Bar
from rollway_driver.client.retry import RetryPolicy
from rollway_driver.client.streaming import Following, Form, StreamedRollout
from rollway_driver.client.transport import AsyncClosing, AsyncTransport, SyncClosing, SyncTransport, with_key
from rollway_wire.batch import BatchRequest, BatchStatus, FailureReason, RolloutView, SessionView
from rollway_wire.problems import RollwayError

API_KEY = "ROLLWAY_DISPATCHER_API_KEY"
PAGE_LIMIT = 64
"""Results asked for at once: a page of long trajectories stays in the tens of megabytes."""
WAIT_S = 20.0
"""How long one poll waits at the dispatcher for something to finish."""
EMPTY_PAGE_PAUSE_S = 0.05
"""After an empty page: a dispatcher that is shutting down answers its waiting polls at once."""


class _Remaining:
    """The seconds a stream may still wait. None never ends."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._ends = None if timeout is None else time.monotonic() + timeout

    def wait(self, wait_s: float, batch_id: str) -> float:
        """Seconds the next poll may wait. Raises TimeoutError when none are left."""
        if self._ends is None:
            return wait_s
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"batch {batch_id} not finished after {self._timeout} s; it goes on at the dispatcher")
        return min(wait_s, left)


class DispatcherClient(SyncClosing):
    """The dispatcher over HTTP. Safe to use from several threads at once.

    Every method tries again on a lost connection, 429, 502, 503 and 504 until ``retry.deadline_s`` after its first
    failure, so that a dispatcher may restart under it; then it raises `Unavailable` or `GatewayTimeout`. Other answers
    raise the `rollway_wire.problems` class of their status at once.

    Raises:
        ValueError: ``base_url`` is not an http(s) URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ):
        """``api_key``: the dispatcher's key; None: the environment's ROLLWAY_DISPATCHER_API_KEY."""
        super().__init__(SyncTransport(base_url, headers=with_key(headers, api_key, API_KEY), retry=retry))

    def submit(self, request: BatchRequest, *, idempotency_key: str | None = None) -> BatchStatus:
        """Post a batch. A key is made when none is given, so that a repeated POST never starts a second batch.

        Raises:
            Conflict: the key was used for another request.
            BadRequest: the request holds something without a JSON form.
        """
        return self._transport.send(calls.submit(request, idempotency_key or str(uuid.uuid4())))

    def status(self, batch_id: str) -> BatchStatus:
        return self._transport.send(calls.status(batch_id))

    def batches(self) -> list[BatchStatus]:
        """Every batch the dispatcher knows, newest first."""
        return self._transport.send_all(calls.batches())

    def rollouts(self, batch_id: str) -> list[RolloutView]:
        """Every rollout of a batch, group by group."""
        return self._transport.send_all(calls.rollouts(batch_id))

    def failures(self, batch_id: str) -> list[FailureReason]:
        """Why rollouts of a batch failed or were cancelled, the most frequent reason first."""
        return self._transport.send(calls.failures(batch_id))

    def results(
        self,
        batch_id: str,
        cursor: int = 0,
        *,
        limit: int = PAGE_LIMIT,
        wait_s: float = WAIT_S,
        packed: bool = True,
    ) -> Page:
        """What finished after ``cursor``; waits up to ``wait_s`` seconds for the first of it.

        Raises:
            ContractViolation: a trajectory's arrays disagree.
        """
        return self._transport.send(calls.results(batch_id, cursor, limit, wait_s, packed))

    def stream(
        self,
        batch_id: str,
        *,
        cursor: int = 0,
        limit: int = PAGE_LIMIT,
        wait_s: float = WAIT_S,
        timeout: float | None = None,
        packed: bool = True,
    ) -> Iterator[FinishedRollout]:
        """Every result once, as it finishes, until the batch is finished.

        Raises:
            TimeoutError: not finished after ``timeout`` seconds. The batch goes on: `cancel` it, or stream again.
        """
        remaining = _Remaining(timeout)
        while True:
            wait = remaining.wait(wait_s, batch_id)
            page = self.results(batch_id, cursor, limit=limit, wait_s=wait, packed=packed)
            yield from page.results
            if page.finished:
                return
            cursor = page.cursor
            if not page.results:
                time.sleep(EMPTY_PAGE_PAUSE_S)

    def follow(
        self,
        batch_id: str,
        *,
        cursor: int = 0,
        trajectories: bool = True,
        form: Form = "ndjson",
        progress: bool = False,
    ) -> Iterator[StreamedRollout]:
        """Every result once, as it finishes, over one connection, which is made again whenever it breaks.

        Cheaper than `stream` for many small results: nothing is asked again for each page.

        Args:
            cursor: of the last result seen; 0 for all.
            trajectories: False leaves the tokens at the dispatcher.
            form: newline-delimited JSON, or server-sent events.
            progress: draw a progress bar; needs the extra ``progress``.

        Raises:
            RollwayError: the dispatcher refused it, or stayed out of reach for ``retry.deadline_s``.
        """
        total = self._total(batch_id) if progress else 0
        following = Following(batch_id, cursor, trajectories, form, self._transport.retry)
        with Bar(total, cursor, shown=progress) as bar:
            while True:
                error: RollwayError | None = None
                try:
                    for line in self._transport.lines(following.call()):
                        for found in following.take(line):
                            bar.add(found.rollout.rewards, failed=found.rollout.failure is not None)
                            yield found
                        if following.ended:
                            return
                except RollwayError as e:
                    error = e
                time.sleep(following.failed(error))

    def _total(self, batch_id: str) -> int:
        return (self.status(batch_id)).total

    def arrow_page(
        self, batch_id: str, cursor: int = 0, *, limit: int = PAGE_LIMIT, wait_s: float = WAIT_S,
        trajectories: bool = True,
    ) -> ArrowPage:  # fmt: skip
        """`results` as a table, one row per rollout. Both ends need the extra ``arrow``.

        Raises:
            NotAcceptable: the dispatcher has no pyarrow.
            ImportError: this process has none.
        """
        return self._transport.send(calls.arrow_page(batch_id, cursor, limit, wait_s, trajectories))

    def cancel(self, batch_id: str) -> BatchStatus:
        """Stop a batch's rollouts; those already finished keep their results."""
        return self._transport.send(calls.cancel(batch_id))

    def cancel_rollout(self, batch_id: str, group_id: str, index: int) -> RolloutView:
        """Stop one rollout; the rest of its batch goes on. A finished one keeps its result."""
        return self._transport.send(calls.cancel_rollout(batch_id, group_id, index))

    def sessions(self) -> list[SessionView]:
        """Every session, of all batches, that a runtime was asked for and has not confirmed to be gone."""
        return self._transport.send(calls.sessions())

    def stop_sessions(self, session_ids: Sequence[str] | None = None) -> list[SessionView]:
        """Cancel the rollouts of these sessions, or with None every batch; those of them that are still there. They are
        stopped until their runtime confirms it: ask `sessions` until they are gone."""
        return self._transport.send(calls.stop_sessions(session_ids))

    def health(self) -> None:
        """Returns when the dispatcher answers that it is well."""
        self._transport.send(calls.health())


class AsyncDispatcherClient(AsyncClosing):
    """`DispatcherClient` for one event loop: the same methods, awaited. Not to be shared between loops.

    Cancelling a call closes its connection. A cancelled `submit` may have reached the dispatcher: submit again with the
    same ``idempotency_key`` to learn its batch.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ):
        """``api_key``: the dispatcher's key; None: the environment's ROLLWAY_DISPATCHER_API_KEY."""
        super().__init__(AsyncTransport(base_url, headers=with_key(headers, api_key, API_KEY), retry=retry))

    async def submit(self, request: BatchRequest, *, idempotency_key: str | None = None) -> BatchStatus:
        """As `DispatcherClient.submit`."""
        return await self._transport.send(calls.submit(request, idempotency_key or str(uuid.uuid4())))

    async def status(self, batch_id: str) -> BatchStatus:
        return await self._transport.send(calls.status(batch_id))

    async def batches(self) -> list[BatchStatus]:
        """As `DispatcherClient.batches`."""
        return await self._transport.send_all(calls.batches())

    async def rollouts(self, batch_id: str) -> list[RolloutView]:
        """As `DispatcherClient.rollouts`."""
        return await self._transport.send_all(calls.rollouts(batch_id))

    async def failures(self, batch_id: str) -> list[FailureReason]:
        """As `DispatcherClient.failures`."""
        return await self._transport.send(calls.failures(batch_id))

    async def results(
        self,
        batch_id: str,
        cursor: int = 0,
        *,
        limit: int = PAGE_LIMIT,
        wait_s: float = WAIT_S,
        packed: bool = True,
    ) -> Page:
        """As `DispatcherClient.results`."""
        return await self._transport.send(calls.results(batch_id, cursor, limit, wait_s, packed))

    async def stream(
        self,
        batch_id: str,
        *,
        cursor: int = 0,
        limit: int = PAGE_LIMIT,
        wait_s: float = WAIT_S,
        timeout: float | None = None,
        packed: bool = True,
    ) -> AsyncIterator[FinishedRollout]:
        """As `DispatcherClient.stream`."""
        remaining = _Remaining(timeout)
        while True:
            wait = remaining.wait(wait_s, batch_id)
            page = await self.results(batch_id, cursor, limit=limit, wait_s=wait, packed=packed)
            for result in page.results:
                yield result
            if page.finished:
                return
            cursor = page.cursor
            if not page.results:
                await asyncio.sleep(EMPTY_PAGE_PAUSE_S)

    async def follow(
        self,
        batch_id: str,
        *,
        cursor: int = 0,
        trajectories: bool = True,
        form: Form = "ndjson",
        progress: bool = False,
    ) -> AsyncIterator[StreamedRollout]:
        """As `DispatcherClient.follow`."""
        total = await self._total(batch_id) if progress else 0
        following = Following(batch_id, cursor, trajectories, form, self._transport.retry)
        with Bar(total, cursor, shown=progress) as bar:
            while True:
                error: RollwayError | None = None
                try:
                    async for line in self._transport.lines(following.call()):
                        for found in following.take(line):
                            bar.add(found.rollout.rewards, failed=found.rollout.failure is not None)
                            yield found
                        if following.ended:
                            return
                except RollwayError as e:
                    error = e
                await asyncio.sleep(following.failed(error))

    async def _total(self, batch_id: str) -> int:
        return (await self.status(batch_id)).total

    async def arrow_page(
        self, batch_id: str, cursor: int = 0, *, limit: int = PAGE_LIMIT, wait_s: float = WAIT_S,
        trajectories: bool = True,
    ) -> ArrowPage:  # fmt: skip
        """As `DispatcherClient.arrow_page`."""
        return await self._transport.send(calls.arrow_page(batch_id, cursor, limit, wait_s, trajectories))

    async def cancel(self, batch_id: str) -> BatchStatus:
        """As `DispatcherClient.cancel`."""
        return await self._transport.send(calls.cancel(batch_id))

    async def cancel_rollout(self, batch_id: str, group_id: str, index: int) -> RolloutView:
        """As `DispatcherClient.cancel_rollout`."""
        return await self._transport.send(calls.cancel_rollout(batch_id, group_id, index))

    async def sessions(self) -> list[SessionView]:
        """As `DispatcherClient.sessions`."""
        return await self._transport.send(calls.sessions())

    async def stop_sessions(self, session_ids: Sequence[str] | None = None) -> list[SessionView]:
        """As `DispatcherClient.stop_sessions`."""
        return await self._transport.send(calls.stop_sessions(session_ids))

    async def health(self) -> None:
        """As `DispatcherClient.health`."""
        await self._transport.send(calls.health())
