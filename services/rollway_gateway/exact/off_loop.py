"""Rendering off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rollway_gateway.threads import stand_back

T = TypeVar("T")
NICE = 10
"""Of the thread that renders: where it shares a core with the event loop, the loop goes first when it has something to
do, and otherwise loses nothing. A kernel that ticks every 4 ms gives this thread a whole tick: at 10 once in 37 ms of a
busy loop's, at 5 once in 12. At 19 other processes on the core would starve a thread that holds the interpreter's
lock."""


_RENDERER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render", initializer=stand_back, initargs=(NICE,))
"""One thread: a template renders under the interpreter's lock, and with several such threads the loop waits for its
turn behind all of them. Tokenising, most of the work, holds no lock; a gateway with more cores has more processes."""


async def off_loop(work: Callable[[], T]) -> T:
    """What ``work`` returns, or raises, done in the thread that renders, first come, first served. Cancelled, it is
    done all the same, and its result dropped."""
    return await asyncio.get_running_loop().run_in_executor(_RENDERER, work)
