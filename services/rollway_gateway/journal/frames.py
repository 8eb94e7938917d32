"""Frames: how records lie in a segment file. Pure.

A segment begins with a header: 4 bytes magic ``RWJS``, u8 version, 3 bytes zero, u64 number of the segment. Frames
follow without gaps, each little-endian:

    offset 0   4 bytes   magic b"RWJF", by which frames are found again behind damage
           4   u32       length of the payload
           8   u64       session number; 0: the gateway as a whole
          16   u64       sequence number of the record, rising through the life of the journal
          24   u8        kind (`records.Kind`)
          25   u32       crc32 of bytes 4 to 24 and the payload
          29   ...       payload
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

VERSION = 1
_SEGMENT = struct.Struct("<4sB3sQ")
_FRAME = struct.Struct("<4sIQQBI")
_SUMMED = struct.Struct("<IQQB")
SEGMENT_HEADER, FRAME_HEADER = _SEGMENT.size, _FRAME.size
_SEGMENT_MAGIC, MAGIC = b"RWJS", b"RWJF"


class Frame(NamedTuple):
    """A record as it lies in a file."""

    session: int
    sequence: int
    kind: int
    payload: bytes


class Found(NamedTuple):
    """A frame and where it begins."""

    offset: int
    frame: Frame


class Damaged(ValueError):
    """Bytes that are no frame. ``offset``: where; ``later``: where the next good frame begins, None: there is none."""

    def __init__(self, offset: int, later: int | None) -> None:
        super().__init__(f"no frame at byte {offset}")
        self.offset = offset
        self.later = later


def segment_header(number: int) -> bytes:
    return _SEGMENT.pack(_SEGMENT_MAGIC, VERSION, b"\0\0\0", number)


def check_segment_header(data: bytes, number: int) -> None:
    """Raises:
    ValueError: not the header of this segment in a version this build reads."""
    if len(data) < SEGMENT_HEADER:
        raise ValueError("is shorter than a segment's header")
    magic, version, zeros, found = _SEGMENT.unpack_from(data)
    if magic != _SEGMENT_MAGIC or zeros != b"\0\0\0":
        raise ValueError("is no segment of a gateway's journal")
    if version != VERSION:
        raise ValueError(f"is a segment of version {version}; this build reads {VERSION}")
    if found != number:
        raise ValueError(f"says it is segment {found}")


def size_of(payload: int) -> int:
    """Bytes of a frame with a payload of so many."""
    return FRAME_HEADER + payload


def head(session: int, sequence: int, kind: int, payload: bytes) -> bytes:
    """What stands before the payload."""
    summed = _SUMMED.pack(len(payload), session, sequence, kind)
    crc = zlib.crc32(payload, zlib.crc32(summed))
    return _FRAME.pack(MAGIC, len(payload), session, sequence, kind, crc)


def pack(session: int, sequence: int, kind: int, payload: bytes) -> bytes:
    return head(session, sequence, kind, payload) + payload


def read(data: bytes | memoryview, offset: int = 0) -> Frame | None:
    """The frame at ``offset``; None: there is none, or not all of it."""
    view = memoryview(data)
    if len(view) - offset < FRAME_HEADER:
        return None
    magic, length, session, sequence, kind, crc = _FRAME.unpack_from(view, offset)
    end = offset + FRAME_HEADER + length
    if magic != MAGIC or end > len(view):
        return None
    payload = bytes(view[offset + FRAME_HEADER : end])
    if zlib.crc32(payload, zlib.crc32(view[offset + 4 : offset + 4 + _SUMMED.size])) != crc:
        return None
    return Frame(session, sequence, kind, payload)


def scan(data: bytes | memoryview, offset: int = SEGMENT_HEADER) -> Iterator[Found]:
    """Every frame from ``offset`` on.

    Raises:
        Damaged: where bytes are no frame, after the frames before them.
    """
    while offset < len(data):
        frame = read(data, offset)
        if frame is None:
            raise Damaged(offset, _next_good(bytes(data), offset + 1))
        yield Found(offset, frame)
        offset += size_of(len(frame.payload))


def _next_good(data: bytes, start: int) -> int | None:
    at = data.find(MAGIC, start)
    while at >= 0:
        if read(data, at) is not None:
            return at
        at = data.find(MAGIC, at + 1)
    return None
