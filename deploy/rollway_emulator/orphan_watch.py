"""The emulator's end of the orphan guard: starts it, tells it of every container, lets it go last."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from rollway_emulator.launch import MARKER_VARIABLE

log = structlog.get_logger()


class OrphanWatch:
    """Knows the groups that live; keeps one guard process told of them, and starts another should it die."""

    def __init__(self) -> None:
        self._token = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._groups: set[int] = set()
        self._pipe = -1
        self._guard: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    def new_marker(self) -> str:
        """A value of the marker variable that no other begins with."""
        return f"{self._token}.{next(self._numbers)}."

    async def add(self, group: int) -> None:
        self._groups.add(group)
        await self._tell(f"+{group}\n")

    async def remove(self, group: int) -> None:
        self._groups.discard(group)
        await self._tell(f"-{group}\n")

    async def start(self) -> None:
        """Raises OSError when no process can be started."""
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rollway_emulator.orphan_guard", MARKER_VARIABLE, f"{self._token}.",
                stdin=read_end, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(read_end)
        self._write("".join(f"+{group}\n" for group in self._groups))

    async def close(self) -> None:
        """End the pipe: the guard sweeps once more and exits."""
        os.close(self._pipe)
        if self._guard is not None:
            await self._guard.wait()

    async def _tell(self, line: str) -> None:
        async with self._lock:
            try:
                self._write(line)
            except BrokenPipeError:
                log.warning("orphan_guard_lost", detail="it was killed from outside; starting another")
                os.close(self._pipe)
                await self.start()

    def _write(self, text: str) -> None:
        # A few bytes into a pipe that the guard does nothing but read: it neither blocks nor fills.
        if text:
            os.write(self._pipe, text.encode())


@asynccontextmanager
async def open_orphan_watch() -> AsyncIterator[OrphanWatch]:
    watch = OrphanWatch()
    await watch.start()
    try:
        yield watch
    finally:
        await watch.close()
