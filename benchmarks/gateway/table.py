"""Results as a table: a row per number, a column per subject, each with its ratio to the floor of the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.gateway.subjects import FLOOR

Results = Mapping[str, Mapping[str, float | int | None]]
"""Numbers by name, by subject."""

_RATIOS = ("cpu_ms", "us_per_event")
"""Numbers whose ratio to the floor says something."""


def rows(results: Results) -> list[str]:
    """Names of the numbers, in the order they were measured."""
    found: dict[str, None] = {}
    for numbers in results.values():
        found.update(dict.fromkeys(numbers))
    return list(found)


def ratio(results: Results, subject: str, name: str) -> float | None:
    """The number over the floor's; None where either is missing or it is no such number."""
    value, floor = results.get(subject, {}).get(name), results.get(FLOOR, {}).get(name)
    if value is None or not floor or not any(part in name for part in _RATIOS):
        return None
    return value / floor


def cell(results: Results, subject: str, name: str) -> str:
    value = results[subject].get(name)
    if value is None:
        return "–"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    times = ratio(results, subject, name)
    return f"{shown} ({times:.1f}×)" if times is not None and subject != FLOOR else shown


def text(results: Results) -> str:
    """The table in Markdown."""
    return markdown(["", *results], [[name, *(cell(results, s, name) for s in results)] for name in rows(results)])


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def row(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = [("-" * w if i == 0 else "-" * (w - 1) + ":") for i, w in enumerate(widths)]
    return "\n".join([row(head), "|" + "|".join(f" {r} " for r in rule) + "|", *(row(line) for line in lines)])
