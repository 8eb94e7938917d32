"""Loaded at the start of every measured Python process, ours and the peers' alike: on SIGUSR2 it collects garbage,
returns free memory to the system, and adds a byte to the file named by ``BENCH_SETTLED``."""

import ctypes
import gc
import os
import signal
from types import FrameType


def _settle(number: int, frame: FrameType | None) -> None:
    gc.collect()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    with open(os.environ["BENCH_SETTLED"], "ab") as told:  # noqa: PTH123 - runs in any process, before its imports
        told.write(b".")


if "BENCH_SETTLED" in os.environ:
    signal.signal(signal.SIGUSR2, _settle)
