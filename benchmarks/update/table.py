"""A run's updates as a table: a row per gateway, each with its ratio to the first."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.gateway.table import markdown

HEAD = ("rows of", "sessions", "sequences", "tokens", "seconds per update", "each repeat", "sequences", "seconds")


def text(run: Mapping[str, Any]) -> str:
    """Of a recorded run, in Markdown. The last two columns are less or more than the first row's, in percent."""
    results = run["results"]
    first = next(iter(results.values()))
    lines = []
    for name, r in results.items():
        lines.append([
            name, str(r["sessions"]), str(r["sequences"]), f"{r['tokens']:,}", f"{median(r['seconds']):.1f}",
            " ".join(f"{s:.1f}" for s in r["seconds"]),
            *(["–", "–"] if r is first else [
                _change(r["sequences"], first["sequences"]), _change(median(r["seconds"]), median(first["seconds"])),
            ]),
        ])  # fmt: skip
    return markdown(HEAD, lines)


def _change(now: float, then: float) -> str:
    return f"{100 * (now - then) / then:+.1f} %"
