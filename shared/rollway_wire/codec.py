"""The token codec: the same value as JSON and as packed binary.

A *tree* is JSON (dict, list, str, int, float, bool, None) whose leaves may also be arrays; its binary form is
`packed`'s.

As JSON, a float that is not finite (only an incomplete turn may hold one) is null, and null reads as NaN.

Routed experts are written only where there are some, so a document without them is the same for every reader. A reader
that knows nothing of them refuses a turn that has them: it would drop them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

from rollway_wire.packed import MEDIA_TYPE, dump_packed, load_packed
from rollway_wire.problems import BadRequest
from rollway_wire.routing import DTYPES, RoutedExperts, Rows
from rollway_wire.tokens import IDS, LOGPROBS, MASK, VERSIONS, Ledger, Sequence, Trajectory, Turn

__all__ = [
    "MEDIA_TYPE", "dump_packed", "load_packed", "load_sequence", "load_trajectory", "load_turn", "sequence_tree",
    "to_json_tree", "trajectory_tree", "turn_tree",
]  # fmt: skip

_TURN_ARRAYS = {"prompt_token_ids": IDS, "completion_token_ids": IDS, "logprobs": LOGPROBS}
_SEQUENCE_ARRAYS = {"token_ids": IDS, "loss_mask": MASK, "logprobs": LOGPROBS, "policy_versions": VERSIONS}
_ROUTING = ("routed_experts", "routing", "unrouted")
"""Fields that are written only where they say something."""
_TURN_FIELDS = tuple(name for name in Turn.__dataclass_fields__ if name not in _ROUTING)
_TURN_SCALARS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("turn_id", "call_id", "model", "worker"), (str,)),
    **dict.fromkeys(("finish_reason", "incomplete", "unrouted"), (str, type(None))),
    **dict.fromkeys(("index", "choice", "policy_version_start", "policy_version_end"), (int,)),
    **dict.fromkeys(("started_at", "ended_at"), (int, float)),
    "first_token_at": (int, float, type(None)),
}
_ROUTED_SCALARS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("start", "layers", "top_k"), (int,)), "after": (str, type(None)), "dtype": (str,),
}  # fmt: skip
_TRAJECTORY_SCALARS: dict[str, tuple[type, ...]] = {
    "session_id": (str,), "incomplete": (str, type(None)), "ledger": (dict,), "metadata": (dict,),
}  # fmt: skip


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
    routed = {} if turn.routed_experts is None else {"routed_experts": routed_tree(turn.routed_experts)}
    return {**{name: getattr(turn, name) for name in _TURN_FIELDS}, **routed, **_unrouted(turn)}


def routed_tree(r: RoutedExperts) -> dict[str, Any]:
    return {name: getattr(r, name) for name in ("start", "after", "layers", "top_k", "dtype", "data")}


def _unrouted(value: Turn | Sequence) -> dict[str, Any]:
    return {} if value.unrouted is None else {"unrouted": value.unrouted}


def sequence_tree(s: Sequence) -> dict[str, Any]:
    return {
        "prompt_length": s.prompt_length,
        "turn_ids": list(s.turn_ids),
        **{name: getattr(s, name) for name in _SEQUENCE_ARRAYS},
        **({} if s.routing is None else {"routing": [list(span) for span in s.routing]}),
        **_unrouted(s),
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
        routed = {} if obj.get("routed_experts") is None else {"routed_experts": load_routed(obj["routed_experts"])}
        return Turn(**{**obj, **_arrays(obj, _TURN_ARRAYS), **routed})

    made: Turn = _reading("turn", make)
    return made


def load_routed(obj: dict[str, Any]) -> RoutedExperts:
    _typed(obj, _ROUTED_SCALARS)
    arrays = _arrays(obj, {"data": DTYPES[obj["dtype"]]})
    return RoutedExperts(**{**{k: v for k, v in obj.items() if k != "dtype"}, **arrays})


def _spans(value: Any) -> tuple[Rows, ...] | None:
    if value is None:
        return None
    spans = tuple(Rows(*span) for span in value)
    for span in spans:
        _typed(span._asdict(), {"turn_id": (str,), "start": (int,), "end": (int,)})
    return spans


def load_sequence(obj: dict[str, Any]) -> Sequence:
    """A sequence from its tree. Raises as `load_turn`."""

    def make() -> Sequence:
        _typed(obj, {"turn_ids": (list, tuple), "prompt_length": (int,), "unrouted": (str, type(None))})
        if not all(isinstance(t, str) for t in obj["turn_ids"]):
            raise TypeError("turn_ids holds something other than strings")
        row = Sequence(
            turn_ids=tuple(obj["turn_ids"]), routing=_spans(obj.get("routing")), unrouted=obj.get("unrouted"),
            **_arrays(obj, _SEQUENCE_ARRAYS),
        )  # fmt: skip
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
