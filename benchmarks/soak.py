"""What `make soak` counts: real services killed under load, and what became of the work they had in hand.

A soak has parts, which may run on different days; each is recorded by itself, and a recorded part has held what its
test asserts. Only counts are kept: how long a part took says how busy the machine was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gateway import baseline, machine
from benchmarks.gateway.table import markdown


def record(name: str, part: str, *, seed: int | str, counts: Mapping[str, int]) -> None:
    """Write one part into baselines/``name``.json, beside the others."""
    path = baseline.FOLDER / f"{name}.json"
    parts = baseline.load(path)["parts"] if path.is_file() else {}
    parts[part] = {"seed": seed, "counts": dict(counts)}
    baseline.save(path, machine=machine.described(), parts=parts)


def text(run: Mapping[str, Any]) -> str:
    """A row per count, a column per part, in Markdown."""
    parts = run["parts"]
    names: dict[str, None] = {}
    for part in parts.values():
        names.update(dict.fromkeys(part["counts"]))
    lines = [
        [name, *(f"{p['counts'][name]:,}" if name in p["counts"] else "–" for p in parts.values())] for name in names
    ]
    return markdown(["", *parts], lines)
