"""A run's updates as a table: a row per gateway, and how much less or more each has than the first."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.gateway.table import markdown

HEAD = ("rows of", "sessions", "sequences", "", "tokens", "", "CPU s per update", "", "each repeat")


def text(run: Mapping[str, Any]) -> str:
    """Of a recorded run, in Markdown. A figure is followed by its difference from the first row's in percent."""
    results = run["results"]
    first = _figures(next(iter(results.values())))
    lines = []
    for name, r in results.items():
        sequences, tokens, cpu = now = _figures(r)
        fewer = [f"{100 * (n / then - 1):+.1f} %" for n, then in zip(now, first, strict=True)] if lines else ["–"] * 3
        lines.append([
            name, str(r["sessions"]), f"{sequences:g}", fewer[0], f"{tokens:,}", fewer[1], f"{cpu:.1f}", fewer[2],
            " ".join(f"{s:.1f}" for s in r["cpu_s"]),
        ])  # fmt: skip
    return markdown(HEAD, lines)


def _figures(result: Mapping[str, Any]) -> tuple[int, int, float]:
    return result["sequences"], result["tokens"], median(result["cpu_s"])
