"""The event loop's clock, put forward: what waits for a time comes due without the test waiting for it."""

from __future__ import annotations

import asyncio


def put_forward(seconds: float) -> None:
    """From now on the running loop's time is so much later. Its timers come due in their order, in the next iteration.

    So a time limit can be long, and no pause of the machine reaches it, and the test still goes past it at once.
    """
    loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
    setattr(loop, "time", lambda: now() + seconds)  # noqa: B010 - a method, replaced on this loop alone
