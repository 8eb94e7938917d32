"""The token codec: the same value as JSON and as packed binary.

A *tree* is JSON (dict, list, str, int, float, bool, None) whose leaves may also be ``array.array`` of typecode
i, f or B.

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

As JSON, a float that is not finite (only an incomplete turn may hold one) is null, and null reads as NaN.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Callable
from typing import Any

from rollway_wire.problems import BadRequest
from rollway_wire.tokens import IDS, LOGPROBS, MASK, VERSIONS, Ledger, Sequence, Trajectory, Turn

MEDIA_TYPE = "application/vnd.rollway.packed"
_MAGIC, _VERSION, _PROLOGUE = b"RWPK", 1, struct.Struct("<4sB3sI")
_LENGTH = struct.Struct("<I")
_SIZES = {"i": 4, "f": 4, "B": 1}
_REFERENCE = "$array"

_TURN_ARRAYS = {"prompt_token_ids": IDS, "completion_token_ids": IDS, "logprobs": LOGPROBS}
_SEQUENCE_ARRAYS = {"token_ids": IDS, "loss_mask": MASK, "logprobs": LOGPROBS, "policy_versions": VERSIONS}
_TURN_FIELDS = tuple(Turn.__dataclass_fields__)
_TURN_SCALARS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("turn_id", "call_id", "model", "worker"), (str,)),
    **dict.fromkeys(("finish_reason", "incomplete"), (str, type(None))),
    **dict.fromkeys(("index", "choice", "policy_version_start", "policy_version_end"), (int,)),
    **dict.fromkeys(("started_at", "ended_at"), (int, float)),
    "first_token_at": (int, float, type(None)),
}
_TRAJECTORY_SCALARS: dict[str, tuple[type, ...]] = {
    "session_id": (str,), "incomplete": (str, type(None)), "ledger": (dict,), "metadata": (dict,),
}  # fmt: skip


def dump_packed(tree: Any) -> bytes:
    """Encode a tree as packed binary.

    Raises:
        TypeError: a value that is not part of a tree.
        ValueError: a float outside an array that is not finite.
    """
    parts: list[bytes] = []
    offset = 0

    def place(value: Any) -> Any:
        nonlocal offset
        if not isinstance(value, array) or value.typecode not in _SIZES:
            raise TypeError(f"{type(value).__name__} is not part of a tree")
        if sys.byteorder == "big":
            value = array(value.typecode, value)
            value.byteswap()
        raw = value.tobytes()
        ref = {_REFERENCE: [value.typecode, offset, len(value)]}
        pad = -len(raw) % 8
        parts.append(raw + b"\0" * pad)
        offset += len(raw) + pad
        return ref

    header = _header(tree, place)
    if header.count(_REFERENCE + '"') != len(parts):
        parts.clear()
        offset = 0
        header = _header(_escaped(tree), place)
    raw = header.encode()
    raw += b" " * (-(16 + len(raw)) % 8)
    body = _LENGTH.pack(len(raw)) + raw + b"".join(parts)
    return _PROLOGUE.pack(_MAGIC, _VERSION, b"\0\0\0", zlib.crc32(body)) + body


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


def to_json_tree(tree: Any) -> Any:
    """The tree with every array as a plain list, floats that are not finite as None."""
    if isinstance(tree, array):
        if tree.typecode == LOGPROBS and not math.isfinite(sum(tree)):
            return [x if math.isfinite(x) else None for x in tree]
        return tree.tolist()
    if isinstance(tree, dict):
        return {k: to_json_tree(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [to_json_tree(v) for v in tree]
    return tree


def trajectory_tree(t: Trajectory) -> dict[str, Any]:
    """A trajectory as a tree (arrays kept packed)."""
    return {
        "session_id": t.session_id,
        "mode": t.mode,
        "incomplete": t.incomplete,
        "ledger": {k: getattr(t.ledger, k) for k in Ledger.__dataclass_fields__},
        "metadata": dict(t.metadata),
        "turns": [turn_tree(turn) for turn in t.turns],
        "sequences": [sequence_tree(s) for s in t.sequences],
    }


def turn_tree(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in _TURN_FIELDS}


def sequence_tree(s: Sequence) -> dict[str, Any]:
    return {
        "prompt_length": s.prompt_length,
        "turn_ids": list(s.turn_ids),
        **{name: getattr(s, name) for name in _SEQUENCE_ARRAYS},
    }


def _arrays(obj: dict[str, Any], kinds: dict[str, str]) -> dict[str, Any]:
    return {k: v if isinstance(v := obj[k], array) else _array(code, v) for k, code in kinds.items()}


def _array(code: str, values: Any) -> array[Any]:
    if not isinstance(values, list):
        raise TypeError(f"expected a list of numbers, got {type(values).__name__}")
    if code == LOGPROBS and None in values:
        values = [math.nan if x is None else x for x in values]
    return array(code, values)


def _typed(obj: dict[str, Any], kinds: dict[str, tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        if name in obj and (not isinstance(obj[name], kind) or (isinstance(obj[name], bool) and bool not in kind)):
            raise TypeError(f"{name} is a {type(obj[name]).__name__}")


def _reading(what: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as e:
        raise BadRequest(f"not a {what}: {type(e).__name__}: {e}") from e


def load_turn(obj: dict[str, Any]) -> Turn:
    """A turn from its tree, arrays as arrays or lists.

    Raises:
        BadRequest: a field is missing or of the wrong type.
        ContractViolation: the lengths disagree.
    """

    def make() -> Turn:
        _typed(obj, _TURN_SCALARS)
        return Turn(**{**obj, **_arrays(obj, _TURN_ARRAYS)})

    made: Turn = _reading("turn", make)
    return made


def load_sequence(obj: dict[str, Any]) -> Sequence:
    """A sequence from its tree. Raises as `load_turn`."""

    def make() -> Sequence:
        _typed(obj, {"turn_ids": (list, tuple), "prompt_length": (int,)})
        if not all(isinstance(t, str) for t in obj["turn_ids"]):
            raise TypeError("turn_ids holds something other than strings")
        row = Sequence(turn_ids=tuple(obj["turn_ids"]), **_arrays(obj, _SEQUENCE_ARRAYS))
        if obj.get("prompt_length", row.prompt_length) != row.prompt_length:
            raise ValueError(f"prompt_length {obj['prompt_length']} but the mask begins at {row.prompt_length}")
        return row

    made: Sequence = _reading("sequence", make)
    return made


def load_trajectory(obj: dict[str, Any]) -> Trajectory:
    """A trajectory from its tree. Raises as `load_turn`."""

    def make() -> Trajectory:
        _typed(obj, _TRAJECTORY_SCALARS)
        if obj["mode"] not in ("mirror", "exact"):
            raise ValueError(f"mode {obj['mode']!r}")
        _typed(obj["ledger"], dict.fromkeys(Ledger.__dataclass_fields__, (int,)))
        return Trajectory(
            session_id=obj["session_id"],
            mode=obj["mode"],
            incomplete=obj["incomplete"],
            ledger=Ledger(**obj["ledger"]),
            metadata=obj["metadata"],
            turns=tuple(load_turn(t) for t in obj["turns"]),
            sequences=tuple(load_sequence(s) for s in obj["sequences"]),
        )

    made: Trajectory = _reading("trajectory", make)
    return made
