"""A tree as packed binary, and back.

A *tree* is JSON (dict, list, str, int, float, bool, None) whose leaves may also be ``array.array`` of typecode
i, f, B or H.

Packed form, little-endian:

    offset 0   4 bytes   magic b"RWPK"
           4   u8        version, 1
           5   3 bytes   zero
           8   u32       crc32 of everything from offset 12 on
          12   u32       header length H
          16   H bytes   UTF-8 JSON of the tree, each array replaced by {"$array": [typecode, offset, count]}
                         (offset in bytes from the start of the array area), space-padded so that
                         16 + H is a multiple of 8
        16+H   ...       the arrays' bytes, each aligned to 8

An object of the tree that would read as such a reference (its one key is $array, or that with more $ before it)
carries one more $ in the header.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Callable
from typing import Any

from rollway_wire.problems import BadRequest

MEDIA_TYPE = "application/vnd.rollway.packed"
_MAGIC, _VERSION, _PROLOGUE = b"RWPK", 1, struct.Struct("<4sB3sI")
_LENGTH = struct.Struct("<I")
_SIZES = {"i": 4, "f": 4, "B": 1, "H": 2}
_REFERENCE = "$array"


def dump_packed(tree: Any) -> bytes:
    """Encode a tree as packed binary.

    Raises:
        TypeError: a value that is not part of a tree.
        ValueError: a float outside an array that is not finite.
    """
    parts: list[bytes] = []
    placed = offset = 0

    def place(value: Any) -> Any:
        nonlocal placed, offset
        if not isinstance(value, array) or value.typecode not in _SIZES:
            raise TypeError(f"{type(value).__name__} is not part of a tree")
        if sys.byteorder == "big":
            value = array(value.typecode, value)
            value.byteswap()
        raw = value.tobytes()
        ref = {_REFERENCE: [value.typecode, offset, len(value)]}
        pad = -len(raw) % 8
        parts.append(raw)
        if pad:
            parts.append(bytes(pad))
        placed += 1
        offset += len(raw) + pad
        return ref

    header = _header(tree, place)
    if header.count(_REFERENCE + '"') != placed:
        parts.clear()
        offset = 0
        header = _header(_escaped(tree), place)
    raw = header.encode()
    raw += b" " * (-(16 + len(raw)) % 8)
    return _sealed([_LENGTH.pack(len(raw)), raw, *parts])


def _sealed(pieces: list[bytes]) -> bytes:
    """Behind their checksum; large arrays are copied once."""
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return b"".join([_PROLOGUE.pack(_MAGIC, _VERSION, b"\0\0\0", crc), *pieces])


def _header(tree: Any, place: Callable[[Any], Any]) -> str:
    return json.dumps(tree, default=place, separators=(",", ":"), allow_nan=False)


def _escaped(tree: Any) -> Any:
    """The tree with a ``$`` before the key of every object that would read as a reference."""
    if isinstance(tree, dict):
        out = {k: _escaped(v) for k, v in tree.items()}
        return {f"${key}": out[key]} if (key := _lone_reference(out)) else out
    if isinstance(tree, list | tuple):
        return [_escaped(v) for v in tree]
    return tree


def _lone_reference(obj: dict[str, Any]) -> str | None:
    """The object's one key if that is ``$array``, ``$$array``, and so on."""
    if len(obj) != 1:
        return None
    key = next(iter(obj))
    return key if isinstance(key, str) and key.endswith(_REFERENCE) and not key[: -len(_REFERENCE)].strip("$") else None


def load_packed(data: bytes | memoryview) -> Any:
    """Decode packed binary.

    Raises:
        BadRequest: not this format, an unknown version, damaged, or with an array outside the data.
    """
    view = memoryview(data)
    if len(view) < 16 or bytes(view[:4]) != _MAGIC:
        raise BadRequest("not a packed Rollway document (no RWPK magic)")
    _, version, zeros, crc = _PROLOGUE.unpack(view[:12])
    if version != _VERSION:
        raise BadRequest(f"packed document has version {version}; this build reads {_VERSION}")
    end = 16 + _LENGTH.unpack(view[12:16])[0]
    if zeros != b"\0\0\0" or end > len(view) or zlib.crc32(view[12:]) != crc:
        raise BadRequest("packed document is truncated or damaged (checksum mismatch)")
    arrays = view[end:]

    def restore(obj: dict[str, Any]) -> Any:
        key = _lone_reference(obj)
        if key is None:
            return obj
        return _read_array(obj[key], arrays) if key == _REFERENCE else {key[1:]: obj[key]}

    try:
        return json.loads(bytes(view[16:end]), object_hook=restore, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise BadRequest(f"packed document's header is not JSON: {e}") from e


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read_array(ref: Any, arrays: memoryview) -> array[Any]:
    outside = BadRequest("packed document names an array outside its data")
    match ref:
        case [str(code), int(start), int(count)] if code in _SIZES and start >= 0 and count >= 0:
            stop = start + _SIZES[code] * count
        case _:
            raise outside
    if stop > len(arrays):
        raise outside
    out: array[Any] = array(code)
    out.frombytes(arrays[start:stop])
    if sys.byteorder == "big":
        out.byteswap()
    return out
