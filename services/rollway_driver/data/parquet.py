"""Rows to a parquet file. pyarrow belongs to the trainer's environment and is imported only when a file is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from rollway_driver.data.errors import DataError
from rollway_driver.data.row import Row


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write ``rows`` with one string column per field of `Row`; the file appears whole or not at all.

    Raises:
        DataError: no pyarrow, no rows, or the file cannot be written.
    """
    if not rows:
        raise DataError(f"no rows for {path}: verl needs at least one in each file")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as e:
        raise DataError(
            "writing parquet needs the package 'pyarrow': use the trainer's environment, or `pip install pyarrow`"
        ) from e
    table = pa.table(
        {f.name: [getattr(row, f.name) for row in rows] for f in fields(Row)},
        schema=pa.schema([(f.name, pa.string()) for f in fields(Row)]),
    )
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, part)
        part.replace(path)
    except OSError as e:
        raise DataError(f"cannot write {path}: {e}") from e
    finally:
        part.unlink(missing_ok=True)
