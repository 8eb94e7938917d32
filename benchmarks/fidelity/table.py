"""A run's scores as tables: a row per gateway over all scripts, then a row per script with a column per gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.fidelity.score import Score
from benchmarks.gateway.table import markdown

HEAD = (
    "all scripts", "turns exact / turns", "fidelity", "sequences per session", "turns trained as sampled",
    "wrong tokens", "row tokens",
)  # fmt: skip


def text(run: Mapping[str, Any]) -> str:
    """Of a recorded run."""
    return tables({name: {s: Score(**numbers) for s, numbers in by.items()} for name, by in run["results"].items()})


def tables(results: Mapping[str, Mapping[str, Score]]) -> str:
    """Scores by gateway and script, in Markdown."""
    return f"{_over_all(results)}\n\n{_by_script(results)}"


def total(scores: Mapping[str, Score]) -> Score:
    """Over all scripts."""
    found = Score()
    for one in scores.values():
        found.add(one)
    return found


def _over_all(results: Mapping[str, Mapping[str, Score]]) -> str:
    lines = []
    for name, s in ((name, total(scores)) for name, scores in results.items()):
        lines.append([
            name, f"{s.exact} / {s.turns}", f"{s.fidelity:.3f}", f"{s.sequences / s.sessions:.2f}",
            f"{s.trained} / {s.turns}", str(s.wrong_tokens), f"{s.row_tokens:,}",
        ])  # fmt: skip
    return markdown(HEAD, lines)


def _by_script(results: Mapping[str, Mapping[str, Score]]) -> str:
    scripts = list(dict.fromkeys(script for scores in results.values() for script in scores))
    lines = [[script, *(_cell(scores[script]) for scores in results.values())] for script in scripts]
    return markdown(["sequences per session (fidelity)", *results], lines)


def _cell(s: Score) -> str:
    return f"{s.sequences / s.sessions:.2f} ({s.fidelity:.3f})"
