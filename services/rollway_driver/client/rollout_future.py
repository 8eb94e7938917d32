"""`RolloutFuture`: one rollout that runs, to be waited for from a thread or from an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import threading
import time
from collections.abc import Generator
from concurrent.futures import CancelledError
from typing import Any

from rollway_driver.client.collector import Collector
from rollway_driver.client.dispatcher_calls import FinishedRollout
from rollway_driver.client.errors import ClientClosed
from rollway_driver.client.loop_thread import settled
from rollway_driver.client.outcome import saved_result
from rollway_wire.batch import RolloutResult
from rollway_wire.failures import Failure
from rollway_wire.tokens import Trajectory


class RolloutFuture:
    """Made by `RolloutClient.invoke`; safe to use from several threads and event loops at once.

    Cancelling a task that awaits it leaves the rollout alone; running into a timeout cancels it.
    """

    def __init__(self, collector: Collector, batch_id: str, input_id: str) -> None:
        self.batch_id = batch_id
        self.input_id = input_id
        self._collector = collector
        self._outcome: cf.Future[dict[str, Any]] = cf.Future()
        self._finished: FinishedRollout | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._begun = time.monotonic()
        self._ended: float | None = None

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Block until the rollout is done and return what its agent saved, without the echoed payload.

        An agent that raised gives the error it saved: ``status_code`` 500, ``stop_reason``, ``traceback``.

        Args:
            timeout: seconds to wait; None: as long as the rollout may run.

        Raises:
            CancelledError: cancelled before a result was there (``concurrent.futures.CancelledError``).
            TimeoutError: not done after ``timeout`` seconds; the rollout has been cancelled.
            RolloutFailed: it failed and the agent saved no error; carries the `Failure`.
            ClientClosed: the client was closed meanwhile.
            RollwayError: the dispatcher could not be asked any more.
        """
        if not cf.wait([self._outcome], timeout).done and self._mark_cancelled():
            self._stop()
            raise TimeoutError(f"rollout {self.batch_id} not done after {timeout} s; cancelled")
        return self._outcome.result()

    async def result_async(self, timeout: float | None = None) -> dict[str, Any]:
        """`result`, awaited."""
        try:
            async with asyncio.timeout(timeout):
                await settled(self._outcome)
        except TimeoutError:
            if self._mark_cancelled():
                await self._stop_async()
                raise TimeoutError(f"rollout {self.batch_id} not done after {timeout} s; cancelled") from None
        return self._outcome.result()

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self.result_async().__await__()

    def done(self) -> bool:
        """True once there is a result, an error or a cancellation. Asks nobody: the poller keeps it up to date."""
        return self._outcome.done()

    async def done_async(self) -> bool:
        """`done`; never waits."""
        return self.done()

    def cancel(self) -> bool:
        """Stop the rollout. True when the dispatcher took it; False when done or cancelled before, or out of reach."""
        return self._mark_cancelled() and self._stop()

    async def cancel_async(self) -> bool:
        """`cancel`, awaited. Cancelling the awaiting task leaves the stop under way."""
        return self._mark_cancelled() and await self._stop_async()

    @property
    def cancelled(self) -> bool:
        """True once `cancel` was called on a running rollout, or someone else cancelled it at the dispatcher."""
        return self._cancelled

    def elapsed(self) -> float:
        """Seconds from the invocation until now, or until it was done."""
        return (self._ended if self._ended is not None else time.monotonic()) - self._begun

    @property
    def rollout(self) -> RolloutResult | None:
        """All the dispatcher says of it; None until it is done, and when cancelled here."""
        return self._finished.rollout if self._finished else None

    @property
    def trajectory(self) -> Trajectory | None:
        """Its tokens; None until it is done, and when nothing was captured."""
        return self._finished.trajectory if self._finished else None

    @property
    def failure(self) -> Failure | None:
        return self.rollout.failure if self.rollout else None

    @property
    def session_id(self) -> str | None:
        """Of its last attempt; None until it is done."""
        return self.rollout.session_id if self.rollout else None

    @property
    def result_key(self) -> str | None:
        """The saved result's S3 key; None until there is one."""
        saved = self.rollout.result if self.rollout else None
        return None if saved is None else saved.get("result_key")

    def finish(self, finished: FinishedRollout) -> None:
        """Called once by the collector with what the dispatcher published."""
        try:
            value, error = saved_result(finished), None
        except Exception as e:  # noqa: BLE001 - it becomes the future's outcome
            value, error = {}, e
        with self._lock:
            if self._outcome.done():
                return
            self._finished, self._ended = finished, time.monotonic()
            self._cancelled = isinstance(error, CancelledError)
            if error is None:
                self._outcome.set_result(value)
            else:
                self._outcome.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Called by the collector when the rollout's end can no longer be learned."""
        with self._lock:
            if not self._outcome.done():
                self._ended = time.monotonic()
                self._outcome.set_exception(error)

    def _mark_cancelled(self) -> bool:
        with self._lock:
            if self._outcome.done():
                return False
            self._cancelled, self._ended = True, time.monotonic()
            self._outcome.set_exception(CancelledError("Future was cancelled"))
            return True

    def _stop(self) -> bool:
        try:
            return self._collector.stop(self.batch_id).result()
        except (ClientClosed, CancelledError):
            return False

    async def _stop_async(self) -> bool:
        try:
            stopping = self._collector.stop(self.batch_id)
            await settled(stopping)
            return stopping.result()
        except (ClientClosed, CancelledError):
            return False
