"""The results as one file, by its ending: .jsonl, or .parquet with pyarrow."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import orjson

from rollway_driver.evaluation.data_set import DataSet, EvaluationError

ENDINGS = (".jsonl", ".parquet")
_KINDS = {
    "input_id": "string", "sample": "int32", "state": "string", "score": "float64", "correct": "bool_",
    "failure": "string", "why": "string", "seconds": "float64", "turns": "int32", "sampled_tokens": "int64",
    "session_id": "string", "batch_id": "string", "cursor": "int64", "input": "string", "result": "string",
}  # fmt: skip


def check_ending(path: Path) -> None:
    """Refuse before the work what could not be written after it.

    Raises:
        EvaluationError: another ending, or Parquet without pyarrow.
    """
    if path.suffix not in ENDINGS:
        raise EvaluationError(f"--out {path}: must end in {' or '.join(ENDINGS)}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise EvaluationError("Parquet needs pyarrow: pip install 'rollway[arrow]', or choose a name ending in .jsonl")


def write_results(path: Path, samples: list[dict[str, Any]], data: DataSet) -> None:
    """One row a sample, by input and number, with its ``input``. Replaces the file whole. In Parquet ``input`` and
    ``result`` are JSON text."""
    place = {input_id: i for i, input_id in enumerate(data.rows)}
    rows = sorted(samples, key=lambda s: (place[s["input_id"]], s["sample"]))
    full = [{**s, "input": data.rows[s["input_id"]]} for s in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    if path.suffix == ".jsonl":
        draft.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in full))
    else:
        _write_parquet(draft, full)
    draft.replace(path)


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [*((name, getattr(pa, kind)()) for name, kind in _KINDS.items()), ("rewards", pa.list_(pa.float64()))]
    )
    as_text = [
        {**r, **{k: None if r[k] is None else orjson.dumps(r[k]).decode() for k in ("input", "result")}} for r in rows
    ]
    pq.write_table(pa.Table.from_pylist(as_text, schema=schema), path)
