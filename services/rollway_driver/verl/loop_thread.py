"""An event loop on a thread of its own, which owns every task started on it and ends them all when it is closed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class LoopThread:
    """Runs coroutines for synchronous callers. A daemon thread: a trainer that forgets `close` can still exit."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """The first exception that a started coroutine ended with."""
        return self._failure

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's value, waited for."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin a coroutine and return; how it ends shows in `failure`."""
        self._loop.call_soon_threadsafe(self._adopt, coroutine)

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancel what runs, wait for it to end, stop the thread. Safe to call twice."""
        if not self._thread.is_alive():
            return
        self.end_tasks(timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def end_tasks(self, timeout_s: float = 30.0) -> None:
        """Cancel what was started and wait for it to end."""
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result(timeout_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _adopt(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        log.error("a batch of rollouts failed: %s", error, exc_info=error)
        self._failure = self._failure or error

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
