"""The token codec: the same value as JSON and as packed binary.

A *tree* is JSON (dict, list, str, int, float, bool, None) whose leaves may also be ``array.array`` of typecode
i, f or B.

Packed form, little-endian:

    offset 0   4 bytes   magic b"RWPK"
           4   u8        version, 1
           5   3 bytes   zero
           8   u32       crc32 of everything from offset 16 on
          12   u32       header length H
          16   H bytes   UTF-8 JSON of the tree, each array replaced by {"$array": [typecode, offset, count]}
                         (offset in bytes from the start of the array area), space-padded so that
                         16 + H is a multiple of 8
        16+H   ...       the arrays' bytes, each aligned to 8
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
from rollway_wire.tokens import IDS, LOGPROBS, MASK, VERSIONS, Ledger, Sequence, Trajectory, Turn

MEDIA_TYPE = "application/vnd.rollway.packed"
_MAGIC, _VERSION, _PROLOGUE = b"RWPK", 1, struct.Struct("<4sB3xII")
_SIZES = {"i": 4, "f": 4, "B": 1}

_TURN_ARRAYS = {"prompt_token_ids": IDS, "completion_token_ids": IDS, "logprobs": LOGPROBS}
_SEQUENCE_ARRAYS = {"token_ids": IDS, "loss_mask": MASK, "logprobs": LOGPROBS, "policy_versions": VERSIONS}
_TURN_FIELDS = tuple(Turn.__dataclass_fields__)


def dump_packed(tree: Any) -> bytes:
    """Encode a tree as packed binary."""
    parts: list[bytes] = []
    offset = 0

    def place(value: Any) -> Any:
        nonlocal offset
        if not isinstance(value, array):
            raise TypeError(f"{type(value).__name__} is not part of a tree")
        if sys.byteorder == "big":
            value = array(value.typecode, value)
            value.byteswap()
        raw = value.tobytes()
        ref = {"$array": [value.typecode, offset, len(value)]}
        pad = -len(raw) % 8
        parts.append(raw + b"\0" * pad)
        offset += len(raw) + pad
        return ref

    header = json.dumps(tree, default=place, separators=(",", ":"), allow_nan=False).encode()
    header += b" " * (-(16 + len(header)) % 8)
    body = header + b"".join(parts)
    return _PROLOGUE.pack(_MAGIC, _VERSION, zlib.crc32(body), len(header)) + body


def load_packed(data: bytes | memoryview) -> Any:
    """Decode packed binary.

    Raises:
        BadRequest: not this format, an unknown version, damaged, or with an array outside the data.
    """
    view = memoryview(data)
    if len(view) < 16 or bytes(view[:4]) != _MAGIC:
        raise BadRequest("not a packed Rollway document (no RWPK magic)")
    _, version, crc, size = _PROLOGUE.unpack(view[:16])
    if version != _VERSION:
        raise BadRequest(f"packed document has version {version}; this build reads {_VERSION}")
    if 16 + size > len(view) or zlib.crc32(view[16:]) != crc:
        raise BadRequest("packed document is truncated or damaged (checksum mismatch)")
    arrays = view[16 + size :]

    def restore(obj: dict[str, Any]) -> Any:
        ref = obj.get("$array")
        if ref is None or len(obj) != 1:
            return obj
        code, start, count = ref
        width = _SIZES.get(code, 0) * count
        if (not width and count) or start < 0 or start + width > len(arrays):
            raise BadRequest("packed document names an array outside its data")
        out = array(code)
        out.frombytes(arrays[start : start + width])
        if sys.byteorder == "big":
            out.byteswap()
        return out

    return json.loads(bytes(view[16 : 16 + size]), object_hook=restore)


def to_json_tree(tree: Any) -> Any:
    """The tree with every array as a plain list."""
    if isinstance(tree, array):
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
    return {k: v if isinstance(v := obj[k], array) else array(code, v) for k, code in kinds.items()}


def _reading(what: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise BadRequest(f"not a {what}: {type(e).__name__}: {e}") from e


def load_turn(obj: dict[str, Any]) -> Turn:
    """A turn from its tree, arrays as arrays or lists.

    Raises:
        BadRequest: a field is missing or of the wrong type.
        ContractViolation: the lengths disagree.
    """
    made: Turn = _reading("turn", lambda: Turn(**{**obj, **_arrays(obj, _TURN_ARRAYS)}))
    return made


def load_sequence(obj: dict[str, Any]) -> Sequence:
    """A sequence from its tree. Raises as `load_turn`."""
    made: Sequence = _reading(
        "sequence", lambda: Sequence(turn_ids=tuple(obj["turn_ids"]), **_arrays(obj, _SEQUENCE_ARRAYS))
    )
    return made


def load_trajectory(obj: dict[str, Any]) -> Trajectory:
    """A trajectory from its tree. Raises as `load_turn`."""
    made: Trajectory = _reading(
        "trajectory",
        lambda: Trajectory(
            session_id=obj["session_id"],
            mode=obj["mode"],
            incomplete=obj["incomplete"],
            ledger=Ledger(**obj["ledger"]),
            metadata=obj["metadata"],
            turns=tuple(load_turn(t) for t in obj["turns"]),
            sequences=tuple(load_sequence(s) for s in obj["sequences"]),
        ),
    )
    return made
