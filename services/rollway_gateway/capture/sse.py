"""Server-sent events out of a byte stream whose pieces may end anywhere."""

from __future__ import annotations

import re

_BLANK = re.compile(rb"\n\n|\r\n\r\n|\r\r")
DONE = b"[DONE]"


class EventTooLarge(ValueError):
    """An event without an end."""


class SseBlocks:
    """Splits bytes into blocks, one per event or comment, each without its blank line.

    Raises:
        EventTooLarge: from `feed`, when more than ``limit`` bytes come without a blank line.
    """

    def __init__(self, limit: int = 1 << 28) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The blocks that ``data`` completes."""
        if self._rest:
            data = self._rest + data
        parts = _BLANK.split(data) if b"\r" in data else data.split(b"\n\n")
        self._rest = parts.pop()
        if len(self._rest) > self._limit:
            raise EventTooLarge(f"an event is over {self._limit} bytes")
        return [p for p in parts if p]

    def close(self) -> bytes:
        """What came after the last blank line."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(block: bytes) -> bytes | None:
    """The event's data; None for a block without any (a comment, a bare ``event:`` or ``retry:`` line)."""
    if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
        return block[6:]
    lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else None
