"""Payloads: JSON with packed arrays behind it. Pure.

u32 length of the JSON, the JSON, then the bytes of its arrays. In the JSON an array is ``[typecode, offset, count]``;
which fields hold arrays is the reader's to know, so nothing that users wrote is ever taken for one.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import orjson

_LENGTH = struct.Struct("<I")
dumps, loads = orjson.dumps, orjson.loads


def pack(tree: Any) -> bytes:
    """Encode JSON values with arrays among them.

    Raises:
        TypeError: a value that is neither.
    """
    parts: list[bytes] = []
    offset = 0

    def place(value: Any) -> Any:
        nonlocal offset
        if not isinstance(value, array):
            raise TypeError(f"{type(value).__name__} cannot be journaled")
        raw = value.tobytes()
        parts.append(raw)
        placed = [value.typecode, offset, len(value)]
        offset += len(raw)
        return placed

    head = dumps(tree, default=place)
    return b"".join((_LENGTH.pack(len(head)), head, *parts))


class Packed:
    """A payload being read."""

    def __init__(self, payload: bytes) -> None:
        end = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
        self.tree: Any = loads(payload[_LENGTH.size : end])
        self._arrays = memoryview(payload)[end:]

    def array(self, placed: Any) -> array[Any]:
        """The array that stands for ``[typecode, offset, count]``.

        Raises:
            ValueError: it is not there.
        """
        code, offset, count = placed
        out: array[Any] = array(code)
        raw = self._arrays[offset : offset + count * out.itemsize]
        if len(raw) != count * out.itemsize:
            raise ValueError("an array reaches beyond its record")
        out.frombytes(raw)
        return out
