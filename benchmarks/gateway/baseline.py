"""Recorded runs, and whether a new one is worse: ratios to the floor of the same run are compared, never times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gateway.table import Results, ratio

FOLDER = Path(__file__).parents[1] / "baselines"
GATEWAY = FOLDER / "gateway.json"
TOLERANCE = 1.3
"""A ratio may be so many times its baseline."""
BYTES_SLACK = 2048
"""Kept memory is compared as it is; an allocator's rounding over a few hundred calls is not a regression."""
TURNS_GROWTH, TIMES = "turns_growth_apart_from_bodies", "scale_times_one_process"
COMPARED_BYTES = ("first_turn_kept_bytes", "later_turn_kept_bytes")


def regressions(now: Results, then: Results, subject: str) -> list[str]:
    """What got worse, in words; only numbers that both runs have."""
    found = []
    for name, value in now.get(subject, {}).items():
        new, old = ratio(now, subject, name), ratio(then, subject, name)
        if new is not None and old is not None and new > old * TOLERANCE:
            found.append(f"{subject} {name}: {new:.2f}× the floor, baseline {old:.2f}×")
        before = then.get(subject, {}).get(name)
        if name in (TURNS_GROWTH, TIMES) and value is not None and before is not None:
            found += _apart(subject, name, value, before)
        if name not in COMPARED_BYTES or value is None or before is None:
            continue
        if value > before * TOLERANCE + BYTES_SLACK:
            found.append(f"{subject} {name}: {value:,.0f} bytes, baseline {before:,.0f}")
    return found


def _apart(subject: str, name: str, value: float, before: float) -> list[str]:
    """Ratios by themselves: growth may not rise, nor what two processes do fall."""
    worse = value > before * TOLERANCE if name == TURNS_GROWTH else value < before / TOLERANCE
    return [f"{subject} {name}: {value:.2f}, baseline {before:.2f}"] if worse else []


def save(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=False) + "\n")


def again(now: dict[str, Any], suites: str) -> dict[str, Any]:
    """The recorded run with what was measured again in place of what it found.

    Args:
        suites: as they were chosen.

    Raises:
        FileNotFoundError: no run was recorded: one of all suites and subjects is to be the first.
    """
    then = load(GATEWAY)
    for part in ("results", "rounds"):
        for subject, numbers in now[part].items():
            then[part].setdefault(subject, {}).update(numbers)
    chosen = suites.split(",")
    for who in list(then["failures"]):
        subject, _, suite = who.partition(", ")
        if subject in now["results"] and (not suite or suite in chosen or suites == "all"):
            del then["failures"][who]
    then["failures"] |= now["failures"]
    then["again"] = [*then.get("again", ()), {"suites": suites, "machine": now["machine"]}]
    return then


def load(path: Path) -> dict[str, Any]:
    """Raises:
    FileNotFoundError: no baseline was recorded."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def rounded(results: Results) -> dict[str, dict[str, float | int | None]]:
    """Four significant digits, as much as a run can mean."""
    return {
        s: {k: v if v is None or isinstance(v, int) else float(f"{v:.4g}") for k, v in numbers.items()}
        for s, numbers in results.items()
    }
