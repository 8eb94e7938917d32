"""Garbage collection of the gateway's process: when nobody waits, and otherwise hardly ever.

Sessions are many long-lived objects, and calls leave no cycles (`tests/gateway/test_garbage.py`). Python looks for some
when there are so many more objects, and walks all that it has not walked before. With 1,000 calls in flight, whose
objects become no more, a look came rarely and stopped the loop for 145 ms; looks at everything took a quarter of every
call's CPU. So it looks at nothing by itself here.

What leaves cycles all the same (an exception knows its frames, and a frame the exception) waits for a moment without
calls, as there is around a weight update; with calls in flight it waits until there are `MANY` new objects, or for
`LATEST_S`.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

SOME = 5_000
"""So many more objects than at the last collection are worth one that nobody waits for."""
MANY = 1_000_000
"""So many are collected though calls are in flight, those alone that are new: it stops the loop for a second, and
bounds what failures can leave."""
LOOK_S = 5.0
LATEST_S = 3600.0
"""After so long all is collected, calls or none: the interpreter's count of new objects is short by the old ones that
went."""


def collect_by_hand() -> None:
    """From here on, and leave what start-up made out of it altogether."""
    gc.collect()
    gc.freeze()
    gc.disable()


async def collect_when_idle(
    in_flight: Callable[[], int],
    look_s: float = LOOK_S,
    latest_s: float = LATEST_S,
    many: int = MANY,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Collect what there is while no call is in flight, where enough is new; for ever.

    Args:
        in_flight: how many calls are.
        look_s: between two looks, seconds.
        latest_s: seconds after which it is done in any case.
        many: so many new objects are collected with calls in flight.
    """
    last = clock()
    while True:
        await asyncio.sleep(look_s)
        calls, new = in_flight(), gc.get_count()[0]
        late = clock() - last >= latest_s
        if not late and new < (many if calls else SOME):
            continue
        began = clock()
        found = gc.collect(0 if calls and not late else 2)
        log.info("collected", objects=found, new=new, ms=round((clock() - began) * 1e3, 1), in_flight=calls)
        if not calls or late:
            last = clock()
