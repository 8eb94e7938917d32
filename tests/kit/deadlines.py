"""Waiting on a condition with a deadline, in place of sleeping for a guessed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

POLL_S = 0.02


def until(condition: Callable[[], Any], what: str, within_s: float = 30.0) -> Any:
    """The first truthy value of ``condition()``.

    Raises:
        TimeoutError: naming ``what``, when none came within ``within_s`` seconds.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(POLL_S)
    return value


async def eventually(condition: Callable[[], Any | Awaitable[Any]], what: str, within_s: float = 30.0) -> Any:
    """`until` on the event loop; ``condition`` may be a coroutine function."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(POLL_S)
