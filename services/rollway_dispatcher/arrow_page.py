"""A page of results as an Arrow IPC stream: one record batch, a row per rollout. Needs pyarrow (extra ``arrow``).

    cursor int64 · rollout_id, batch_id, group_id string · index, attempt int32 · state string · session_id string?
    failure_type, failure_message, failure_traceback string? · rewards list<float64>?
    result string? (the saved object as JSON) · admitted_at, invoked_at, started_at, noticed_at, finished_at float64?
    mode, incomplete string? · ledger struct<sampled, trained, context, duplicate, orphaned, lost: int64>?
    sequences list<struct<token_ids list<int32>, loss_mask list<uint8>, logprobs list<float32>,
                          policy_versions list<int32>, turn_ids list<string>>>?

``?`` may be null: the last four are, together, where nothing was captured. The four lists of numbers of a sequence are
equally long. The schema's metadata holds ``rollway.cursor`` and ``rollway.finished`` (``true`` or ``false``). Turns and
routed experts travel in the packed and the JSON form alone.
"""

from __future__ import annotations

import importlib.util
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import orjson

from rollway_dispatcher.results_page import Found
from rollway_wire.codec import load_packed, load_trajectory
from rollway_wire.tokens import IDS, LOGPROBS, MASK, VERSIONS, Ledger, Sequence, Trajectory

AVAILABLE = importlib.util.find_spec("pyarrow") is not None
_TEXTS = ("rollout_id", "batch_id", "group_id", "state", "session_id")
_TIMES = ("admitted_at", "invoked_at", "started_at", "noticed_at", "finished_at")
_ARRAYS = {"token_ids": IDS, "loss_mask": MASK, "logprobs": LOGPROBS, "policy_versions": VERSIONS}


def arrow_page(found: Found) -> bytes:
    """The encoded page.

    Raises:
        ImportError: pyarrow is not installed.
        RollwayError: a stored trajectory is not whole.
    """
    import pyarrow as pa

    rollouts = [orjson.loads(r.document) for r in found.results]
    packed = [r.trajectory for r in found.results]
    trajectories = [None if p is None else load_trajectory(load_packed(p)) for p in packed]
    columns = {"cursor": pa.array([r.seq for r in found.results], pa.int64())}
    columns |= {name: pa.array([r[name] for r in rollouts], pa.string()) for name in _TEXTS}
    columns |= {name: pa.array([r[name] for r in rollouts], pa.int32()) for name in ("index", "attempt")}
    for part in ("type", "message", "traceback"):
        values = [r["failure"] and r["failure"][part] for r in rollouts]
        columns[f"failure_{part}"] = pa.array(values, pa.string())
    columns["rewards"] = pa.array([r["rewards"] for r in rollouts], pa.list_(pa.float64()))
    saved = [None if r["result"] is None else orjson.dumps(r["result"]).decode() for r in rollouts]
    columns["result"] = pa.array(saved, pa.string())
    columns |= {name: pa.array([r["timings"][name] for r in rollouts], pa.float64()) for name in _TIMES}
    columns |= _captured(pa, trajectories)
    said = {"rollway.cursor": str(found.cursor), "rollway.finished": str(found.finished).lower()}
    table = pa.table(columns, metadata=said)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _captured(pa: Any, trajectories: list[Trajectory | None]) -> dict[str, Any]:
    fields = tuple(Ledger.__dataclass_fields__)
    ledgers = [t and {name: getattr(t.ledger, name) for name in fields} for t in trajectories]
    rows = [s for t in trajectories if t is not None for s in t.sequences]
    kinds = {IDS: pa.int32(), MASK: pa.uint8(), LOGPROBS: pa.float32()}
    parts = {name: _lists(pa, [getattr(s, name) for s in rows], kinds[code]) for name, code in _ARRAYS.items()}
    parts["turn_ids"] = pa.array([list(s.turn_ids) for s in rows], pa.list_(pa.string()))
    sequences = pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
    of_each = _offsets(pa, [None if t is None else t.sequences for t in trajectories])
    return {
        "mode": pa.array([t and t.mode for t in trajectories], pa.string()),
        "incomplete": pa.array([t and t.incomplete for t in trajectories], pa.string()),
        "ledger": pa.array(ledgers, pa.struct([(name, pa.int64()) for name in fields])),
        "sequences": pa.ListArray.from_arrays(of_each, sequences),
    }


def _lists(pa: Any, arrays: list[array[Any]], kind: Any) -> Any:
    """``list<kind>``, the numbers copied once, as bytes."""
    values = pa.py_buffer(b"".join(a.tobytes() for a in arrays))
    flat = pa.Array.from_buffers(kind, sum(map(len, arrays)), [None, values])
    return pa.ListArray.from_arrays(_offsets(pa, arrays), flat)


def _offsets(pa: Any, parts: Iterable[array[Any] | tuple[Sequence, ...] | None]) -> Any:
    """Where each list begins; null where there is none."""
    given = list(parts)
    ends = list(accumulate((len(p) if p is not None else 0 for p in given), initial=0))
    return pa.array([*(None if p is None else e for p, e in zip(given, ends[:-1], strict=True)), ends[-1]], pa.int32())
