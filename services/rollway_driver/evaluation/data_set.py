"""The inputs of an evaluation: one JSON object a line, handed to the agent as it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollway_wire.ids import check_segment
from rollway_wire.rollout import ROLLOUT_KEY


class EvaluationError(Exception):
    """It cannot be started or go on; the message says what to change."""


@dataclass(frozen=True, slots=True)
class DataSet:
    rows: dict[str, dict[str, Any]]
    """By input id: the row's ``id`` where every row has one of its own, else its number from 0."""
    digest: str
    """Of the rows in their order: another data set has another."""


def read_data_set(path: Path, limit: int | None = None) -> DataSet:
    """The first ``limit`` rows of a JSONL file.

    Raises:
        EvaluationError: no such file, no rows, or a line that is no JSON object.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as e:
        raise EvaluationError(f"{path}: {e.strerror}") from e
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as e:
            raise EvaluationError(f"{path}, line {number}: not JSON: {e}") from e
        if not isinstance(row, dict) or ROLLOUT_KEY in row:
            raise EvaluationError(f"{path}, line {number}: must be a JSON object without {ROLLOUT_KEY!r}")
        rows.append(row)
        if len(rows) == limit:
            break
    if not rows:
        raise EvaluationError(f"{path} has no rows")
    named = dict(zip(_ids(rows), rows, strict=True))
    canonical = orjson.dumps(list(named.items()), option=orjson.OPT_SORT_KEYS)
    return DataSet(named, hashlib.sha256(canonical).hexdigest())


def _ids(rows: list[dict[str, Any]]) -> list[str]:
    given = [str(row["id"]) if isinstance(row.get("id"), str | int) else "" for row in rows]
    try:
        if len(set(given)) == len(rows):
            return [check_segment(value, "id") for value in given]
    except ValueError:
        pass  # ids that cannot be part of an S3 key: numbers, then
    return [str(i) for i in range(len(rows))]
