"""The evaluation's table: live in a terminal, once at the end elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rollway_driver.evaluation.score import Summary, summarize


class Screen:
    """``with`` shows it. Redrawn four times a second from the samples as they stand."""

    def __init__(
        self, console: Console, title: str, samples: list[dict[str, Any]], total: int, ks: Sequence[int]
    ) -> None:
        self._console = console
        self._title, self._samples, self._total, self._ks = title, samples, total, ks
        self._begun, self._before = time.monotonic(), len(samples)
        self._live = Live(self, console=console, refresh_per_second=4) if console.is_terminal else None
        self._summary: Summary | None = None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._console.print(self)

    def __rich__(self) -> Table:
        if self._summary is None or self._summary.samples != len(self._samples):
            self._summary = summarize(list(self._samples), self._ks)
        return table(self._title, self._summary, self._total, self._pace())

    def _pace(self) -> str:
        took = time.monotonic() - self._begun
        new = len(self._samples) - self._before
        left = self._total - len(self._samples)
        ahead = f", {took / new * left:.0f} s to go" if new and left else ""
        return f"{took:.0f} s{ahead}"


def table(title: str, s: Summary, total: int, pace: str = "") -> Table:
    made = Table(title=title, show_header=False, title_justify="left")
    made.add_row("rollouts", f"{s.samples} of {total}")
    if pace:
        made.add_row("time", pace)
    made.add_row("mean score", "-" if s.mean_score is None else f"{s.mean_score:.4f} over {s.scored}")
    made.add_row("correct", f"{s.correct} of {s.counted}")
    for p in s.pass_at:
        made.add_row(f"pass@{p.k}", "-" if p.value is None else f"{p.value:.4f} over {p.inputs} inputs")
    for kind, number in s.failures:
        made.add_row(f"[red]{kind}[/red]", str(number))
    return made
