"""Garbage collection of the gateway's process: a little of what is young at a time, and all of it when nobody waits.

Sessions are many long-lived objects, and calls leave no cycles. With Python's own thresholds and 1,000 calls in flight,
walking all of them took a quarter of the CPU of every call and stopped the loop for 400 ms at a time. What is young is
walked in one go, too: 1 to 2 microseconds of a stopped loop for each object. One answer read is some hundred objects
that die with it, so that looking every 700, as Python does, is work for nothing.

Failures may leave cycles (an exception knows its frames, and a frame the exception). They wait for a moment without
calls, as there is around a weight update.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

YOUNG = 4_000
"""More objects than so many were made than freed: the young ones are looked at."""
NEVER = 2**31 - 1
LOOK_S = 5.0
LATEST_S = 3600.0
"""After so long without a moment without calls, all is collected in spite of them."""


def collect_young_alone() -> None:
    """From here on, and leave what start-up made out of it altogether."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, NEVER, NEVER)


async def collect_when_idle(
    in_flight: Callable[[], int],
    look_s: float = LOOK_S,
    latest_s: float = LATEST_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Collect all that is there while no call is in flight, where the young ones were looked at since; for ever.

    Args:
        in_flight: how many calls are.
        look_s: between two looks, seconds.
        latest_s: seconds after which it is done with calls in flight.
    """
    last = clock()
    while True:
        await asyncio.sleep(look_s)
        calls, waited_s = in_flight(), clock() - last
        if not gc.get_count()[1] or (calls and waited_s < latest_s):
            continue
        began = clock()
        found = gc.collect()
        last = clock()
        log.info("collected", objects=found, ms=round((last - began) * 1e3, 1), in_flight=calls)
