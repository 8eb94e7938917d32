"""The agents' event loop: async agents share one loop on a thread of its own.

One loop, so that a client which an agent keeps in a global works in every rollout; not the server's, so that an async
agent which blocks cannot stop /ping and /invocations.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class AgentLoop:
    """Starts its thread with the first agent. Owns the tasks it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, make: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context, ended: Callable[[], None]
    ) -> Callable[[], None]:
        """Run ``make()`` as a task in ``context``; return what cancels it. Both from any thread. ``ended`` is called on
        the loop when the task has ended, which one that is cancelled before its first step cannot tell itself."""
        loop = self._running()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = loop.create_task(make(), context=context)
            tasks.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: ended())

        loop.call_soon_threadsafe(begin)

        def cancel() -> None:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        return cancel

    def close(self, timeout_s: float) -> None:
        """Cancel what still runs and end the thread. An agent that blocks the loop keeps it past ``timeout_s``."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(max(0.0, timeout_s))

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="rollout-agents", daemon=True
                )
                self._thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                loop.run_until_complete(asyncio.wait(set(self._tasks)))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
