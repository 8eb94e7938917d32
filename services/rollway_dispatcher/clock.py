"""Unix time that never jumps while we run, so a corrected clock neither kills agents nor keeps dead ones."""

from __future__ import annotations

import time


class Clock:
    """Wall-clock time at start plus monotonic time since: comparable with what an earlier run stored."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return self._offset + time.monotonic()
