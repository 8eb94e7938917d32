"""Loaded at the start of every measured Python process, ours and the peers' alike.

SIGUSR2: it collects garbage, returns free memory to the system, and adds a byte to the file named by ``BENCH_SETTLED``.
SIGUSR1: it begins to watch how late its event loop is, by a timer every millisecond; once more, and it writes how late
that was each time, in seconds as JSON, to the file named by ``BENCH_DELAYS``.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import time
from types import FrameType

EVERY_S = 0.001


def _settle(number: int, frame: FrameType | None) -> None:
    gc.collect()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    with open(os.environ["BENCH_SETTLED"], "ab") as told:  # noqa: PTH123 - runs in any process, before its imports
        told.write(b".")


class _Watch:
    def __init__(self) -> None:
        self.on = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0
        self._late: list[float] = []

    def switch(self, number: int, frame: FrameType | None) -> None:
        self.on = not self.on
        if self.on:
            self._loop = asyncio.get_running_loop()
            self._late = []
            self._wait()
            return
        whole = os.environ["BENCH_DELAYS"]
        with open(whole + ".part", "w") as told:  # noqa: PTH123
            json.dump(self._late, told)
        os.replace(whole + ".part", whole)  # noqa: PTH105

    def _wait(self) -> None:
        assert self._loop is not None
        self._due = time.monotonic() + EVERY_S
        self._loop.call_later(EVERY_S, self._tick)

    def _tick(self) -> None:
        if self.on:
            self._late.append(time.monotonic() - self._due)
            self._wait()


if "BENCH_SETTLED" in os.environ:
    signal.signal(signal.SIGUSR2, _settle)
    signal.signal(signal.SIGUSR1, _Watch().switch)
