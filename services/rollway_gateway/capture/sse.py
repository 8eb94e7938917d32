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
        self.rest: list[bytes] = []
        """Of the block that is not complete: pieces, since one with routed experts may have thousands. Empty where none
        is begun."""
        self._size = 0
        self._tail = b""
        """Its last bytes, where a blank line may have begun."""
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The blocks that ``data`` completes."""
        if self.rest:
            if not _has_blank(self._tail + data):
                self._keep(data)
                return []
            data = self.close() + data
        parts = _BLANK.split(data) if b"\r" in data else data.split(b"\n\n")
        if last := parts.pop():
            self._keep(last)
        return [p for p in parts if p]

    def _keep(self, piece: bytes) -> None:
        self.rest.append(piece)
        self._size += len(piece)
        self._tail = (self._tail + piece[-3:])[-3:]
        if self._size > self._limit:
            raise EventTooLarge(f"an event is over {self._limit} bytes")

    def close(self) -> bytes:
        """What came after the last blank line."""
        rest = b"".join(self.rest)
        self.rest.clear()
        self._size, self._tail = 0, b""
        return rest


def _has_blank(data: bytes) -> bool:
    return b"\n\n" in data or (b"\r" in data and _BLANK.search(data) is not None)


def data_of(block: bytes) -> bytes | None:
    """The event's data; None for a block without any (a comment, a bare ``event:`` or ``retry:`` line)."""
    if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
        return block[6:]
    lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else None
