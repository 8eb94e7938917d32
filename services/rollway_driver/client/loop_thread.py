"""One thread with one event loop, which owns every task started on it; callers wait from any thread or other loop."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollway_driver.client.errors import ClientClosed

T = TypeVar("T")


class LoopThread:
    """Starts with the first `spawn`; ends with `close`. A daemon, so that a program may end without closing it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing: set[cf.Future[Any]] = set()
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, finish: bool = False) -> cf.Future[T]:
        """Run it on the loop. ``finish``: `close` waits for it before it cancels the others.

        Raises:
            ClientClosed: `close` has ended the thread.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClientClosed("this client is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(self._own(coroutine), self._loop)
            if finish:
                self._finishing.add(future)
        if finish:
            future.add_done_callback(self._finishing.discard)
        return future

    def close(self, grace_s: float, last: Coroutine[Any, Any, None]) -> None:
        """Wait up to ``grace_s`` for what must finish, cancel the rest, run ``last``, and end the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if self._closed or loop is None or thread is None:
                self._closed = True
                last.close()
                return
        asyncio.run_coroutine_threadsafe(self._drain(grace_s, last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _own(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await coroutine

    async def _drain(self, grace_s: float, last: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while finishing := self._unfinished():
                    await settled(finishing[0])
        with self._lock:
            self._closed = True
        await asyncio.sleep(0)  # what was spawned just before that has its task now
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await last
        await asyncio.get_running_loop().shutdown_asyncgens()
        await asyncio.get_running_loop().shutdown_default_executor()

    def _unfinished(self) -> list[cf.Future[Any]]:
        with self._lock:
            return list(self._finishing)


async def settled(future: cf.Future[Any]) -> None:
    """Wait on the running loop until ``future`` is done, whatever its outcome; cancelling the wait leaves it alone."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: cf.Future[Any]) -> None:
        # The waiter's loop may have ended before this future did: then nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    await done.wait()
