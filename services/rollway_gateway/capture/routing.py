"""Routed experts as vLLM writes them into an answer: base64 of a .npy file of shape (rows, layers, experts per token).

Read without numpy: the file is a header in one fixed spelling and then the ids as they lie in memory.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import pybase64

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\{'descr': '[<|](u1|u2)', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\), *\} *\n",
)
_TYPECODES = {b"u1": "B", b"u2": "H"}


@dataclass(frozen=True, slots=True)
class Reported:
    """What one answer, or one part of an answer that was cut, brought."""

    text: str
    """As the engine wrote it."""
    skip: int
    """Leading rows that it was asked to leave out."""
    tokens: int
    """Of prompt and completion, up to the end of this part."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows ``first`` and on, in one piece: `rollway_wire.routing.RoutedExperts` says how they lie."""

    first: int
    layers: int
    top_k: int
    data: array[int]

    @property
    def width(self) -> int:
        return self.layers * self.top_k

    @property
    def end(self) -> int:
        return self.first + len(self.data) // self.width

    def since(self, row: int) -> array[int]:
        """The ids of ``row`` and those after it."""
        return self.data[(row - self.first) * self.width :] if row > self.first else self.data


def read_rows(reports: Sequence[Reported]) -> RowBlock:
    """All rows of an answer: of its parts one after another, each row as the earliest part has it.

    Raises:
        ValueError: not such a file, not one row for each token but the last, or parts that do not go together.
    """
    whole = _read(reports[0])
    for report in reports[1:]:
        more = _read(report)
        if (more.layers, more.top_k, more.data.typecode) != (whole.layers, whole.top_k, whole.data.typecode):
            raise ValueError("routed experts changed their form within one answer")
        if more.first > whole.end:
            raise ValueError(f"routed experts of rows {whole.end} to {more.first} are missing")
        whole.data.extend(more.since(whole.end))
    return whole


def _read(report: Reported) -> RowBlock:
    block = _decode(report.text)
    rows = block.end
    if rows == report.tokens - 1:  # an engine that knows of no skipping
        return block
    if rows != report.tokens - 1 - report.skip:
        raise ValueError(f"{rows} rows of routed experts for {report.tokens} tokens from row {report.skip} on")
    return RowBlock(report.skip, block.layers, block.top_k, block.data)


def _decode(text: str) -> RowBlock:
    try:
        raw = pybase64.b64decode(text, validate=True)
    except ValueError as e:  # binascii.Error among them
        raise ValueError(f"routed experts are not base64: {e}") from None
    start = _header_start(raw)
    found = None if start is None else _HEADER.match(raw, start)
    if found is None:
        raise ValueError(f"routed experts are not a .npy file of uint8 or uint16 rows: it begins {raw[:128]!r}")
    rows, layers, top_k = (int(n) for n in found.groups()[1:])
    data: array[int] = array(_TYPECODES[found[1]])
    if len(raw) - found.end() != rows * layers * top_k * data.itemsize or not rows * layers * top_k:
        raise ValueError(f"{len(raw) - found.end()} bytes of routed experts for shape {(rows, layers, top_k)}")
    data.frombytes(memoryview(raw)[found.end() :])
    if sys.byteorder == "big":
        data.byteswap()
    return RowBlock(0, layers, top_k, data)


def _header_start(raw: bytes) -> int | None:
    """Where the header's text begins; versions differ in how its length is written."""
    if len(raw) < 12 or raw[:6] != _MAGIC:
        return None
    start, form = (10, "<H") if raw[6] == 1 else (12, "<I")
    size = struct.unpack_from(form, raw, 8)[0]
    return start if len(raw) >= start + size and raw[start + size - 1 : start + size] == b"\n" else None
