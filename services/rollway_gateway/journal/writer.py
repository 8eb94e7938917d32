"""The thread that writes: everything that waits goes out in one write, and one sync where that is asked for.

The thread does next to nothing but write, which needs no interpreter: an event loop that runs meanwhile takes the
interpreter's lock anew for every socket it reads, and would wait for the thread each time. Where they share a core it
does not take that from the loop as it wakes, which costs a busy one an eighth of its calls.

What cannot be written stays, in its order and for its place, and is tried again: a disk that was full loses nothing
that is still in memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rollway_gateway.journal.disk import Disk
from rollway_gateway.threads import stand_back

AGAIN_S = 0.5
"""Between attempts while writing fails."""


class Waiting(NamedTuple):
    """A frame to be written."""

    segment: int
    sequence: int
    head: bytes
    payload: bytes


class Writer:
    """Owns the thread. `hand_over` and `close` are called from one thread, the event loop's."""

    def __init__(self, disk: Disk, *, written: Callable[[int], None], failed: Callable[[OSError], None]) -> None:
        """
        Args:
            written: called in the thread with the sequence number up to which all is on disk.
            failed: called in the thread with what each failed attempt met.
        """
        self._disk, self._written, self._failed = disk, written, failed
        self._queue: deque[Waiting] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hand_over(self, waiting: list[Waiting]) -> None:
        with self._wake:
            self._queue.extend(waiting)
            self._wake.notify()

    def close(self) -> int:
        """Write what waits and end the thread; a last attempt where writing fails. Returns how many frames are left."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        return len(self._queue)

    def _run(self) -> None:
        stand_back()
        group: list[Waiting] = []
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                closing = self._closing
                group = list(self._queue)
            if group and not self._write(group) and not closing:
                with self._wake:
                    self._wake.wait_for(lambda: self._closing, AGAIN_S)
            elif closing:
                return

    def _write(self, group: list[Waiting]) -> bool:
        done = 0
        try:
            while done < len(group):
                segment = group[done].segment
                end = done
                while end < len(group) and group[end].segment == segment:
                    end += 1
                self._disk.write(segment, [part for waiting in group[done:end] for part in waiting[2:]])
                done = end
        except OSError as e:
            self._failed(e)
            return False
        finally:
            with self._wake:
                for _ in range(done):
                    self._queue.popleft()
            if done:
                self._written(max(waiting.sequence for waiting in group[:done]))
        return True
