"""An agent that waits for ever: sync, async, or async and deaf to cancellation, as the payload says.

It says "waiting" when it is at it, and "unwound" when an async one is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from rollway_shim import RolloutApp

app = RolloutApp(shutdown_grace_s=float(os.environ.get("GRACE_S", "10")))


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one write: lines of several threads do not mix


async def _wait_kindly() -> None:
    _say("waiting")
    try:
        await asyncio.sleep(3600)
    finally:
        _say("unwound")


def _wait_on_a_thread() -> None:
    _say("waiting")  # from here, so that whoever has heard it finds the agent here
    time.sleep(3600)


def _sync(payload: dict[str, Any]) -> dict[str, Any]:
    _wait_on_a_thread()
    return {}


async def _async(payload: dict[str, Any]) -> dict[str, Any]:
    if payload.get("deaf"):
        _wait_on_a_thread()
    await _wait_kindly()
    return {}


app.rollout_entrypoint(_sync if os.environ.get("KIND") == "sync" else _async)

if __name__ == "__main__":
    app.run()
