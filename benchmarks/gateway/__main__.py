"""``python -m benchmarks.gateway``: measure the gateways side by side in one run and print the table.

Exit status: 0; 1 when --check finds a regression, or a gateway of ours could not be measured; 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

import uvloop

from benchmarks.gateway import baseline, machine, scale, table, turns
from benchmarks.gateway.bench import Refused, running
from benchmarks.gateway.environments import Unavailable
from benchmarks.gateway.process import StartFailed
from benchmarks.gateway.size import QUICK, Numbers, Size
from benchmarks.gateway.subjects import FLOOR, Subject, named
from benchmarks.gateway.suites import SUITES

REPEATED = ("plain", "stream", "turns", "rendering")
"""Suites short enough to be run in every round; of the others, those of `_rounds` as often as is said there, and the
rest once."""
SCALE_ROUNDS = 5
"""At least, where there are several: a ratio of two runs, each of which takes seconds and moves with the machine."""
CHECKED = "plain,stream,memory,turns,routing,scale"


class Run:
    """One run over suites and subjects; the median of the rounds is kept."""

    def __init__(self, subjects: list[Subject], size: Size, rounds: int) -> None:
        self._subjects = subjects
        self._size = size
        self._rounds = rounds
        self._cores = machine.cores()
        self._seen: dict[str, dict[str, list[float | int | None]]] = {s.name: {} for s in subjects}
        self.failures: dict[str, str] = {}

    async def measure(self, suites: list[str]) -> None:
        for suite in suites:
            for turn in range(max(self._rounds_of(suite, s) for s in self._subjects)):
                for subject in self._subjects:
                    if turn >= self._rounds_of(suite, subject) or not SUITES[suite].takes(subject):
                        continue
                    if subject.name not in self.failures:
                        print(f"{suite} {turn + 1} · {subject.name}", file=sys.stderr, flush=True)
                        await self._one(suite, subject)

    def _rounds_of(self, suite: str, subject: Subject) -> int:
        """How often a suite is run. With a thousand calls in flight the peers take minutes, and ours are judged by the
        worst of a few health checks."""
        if suite in REPEATED or (suite == "in_flight" and subject.ours):
            return self._rounds
        return max(self._rounds, SCALE_ROUNDS) if suite == "scale" and self._rounds > 1 else 1

    async def _one(self, suite: str, subject: Subject) -> None:
        try:
            chosen = SUITES[suite]
            extra = chosen.environment if subject.ours else None
            async with running(subject, self._cores, extra, bound=chosen.bound) as bench:
                numbers = await chosen.measure(bench, self._size)
        except Unavailable as e:
            self.failures[subject.name] = f"not measured: {e}"
        except StartFailed as e:
            self.failures[subject.name] = f"did not start: {e}"
        except (Refused, TimeoutError, OSError) as e:
            self.failures.setdefault(f"{subject.name}, {suite}", f"{type(e).__name__}: {e}")
        else:
            for name, value in numbers.items():
                self._seen[subject.name].setdefault(name, []).append(value)

    def results(self) -> dict[str, Numbers]:
        """Of each subject, with what follows from two of them."""
        found = {s: {n: _median(v) for n, v in found.items()} for s, found in self._seen.items() if found}
        for subject in self._subjects:
            numbers = found.get(subject.name, {})
            if subject.ours and (grown := turns.growth(numbers, found.get(FLOOR, {}))) is not None:
                numbers[baseline.TURNS_GROWTH] = grown
            if subject.processes > 1 and (times := scale.times(found.get("rollway", {}), numbers)) is not None:
                numbers[baseline.TIMES] = times
        return found

    def spread(self) -> dict[str, dict[str, list[float | int | None]]]:
        """Every round's value of what was repeated."""
        return {s: {n: v for n, v in found.items() if len(v) > 1} for s, found in self._seen.items() if found}


def _median(values: list[float | int | None]) -> float | int | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.gateway", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subjects", help="comma-separated; all by default")
    parser.add_argument("--suites", help=f"comma-separated of {','.join(SUITES)}; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="of the short suites; the median counts (3)")
    parser.add_argument("--quick", action="store_true", help="a few calls of each: shows that it works, not how fast")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument(
        "--record", action="store_true",
        help="write them as the baseline; where suites or subjects are chosen, in place of theirs alone",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="compare ours with the baseline; measures only what it needs"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(argv)
    suites = (chosen.suites or (CHECKED if chosen.check else ",".join(SUITES))).split(",")
    if unknown := [s for s in suites if s not in SUITES]:
        parser.error(f"unknown suite {unknown[0]!r}: choose from {', '.join(SUITES)}")
    try:
        subjects = named(chosen.subjects)
        run = Run(subjects, QUICK if chosen.quick else Size(), chosen.rounds)
    except (ValueError, RuntimeError) as e:
        parser.error(str(e))
    if chosen.check and chosen.subjects is None:
        run = Run([s for s in subjects if s.ours or s.name == FLOOR], QUICK if chosen.quick else Size(), chosen.rounds)
    about = machine.described()
    os.sched_setaffinity(0, {machine.cores().client})
    uvloop.run(run.measure(suites))
    return _report(run, about, subjects, chosen)


def _report(run: Run, about: dict[str, object], subjects: list[Subject], chosen: argparse.Namespace) -> int:
    results = run.results()
    print(", ".join(f"{k} {v}" for k, v in about.items()) + "\n")
    print(table.text(results))
    for name, why in run.failures.items():
        print(f"\n{name}: {why}")
    content = {
        "machine": about, "results": baseline.rounded(results), "rounds": run.spread(), "failures": run.failures,
    }  # fmt: skip
    if chosen.out:
        baseline.save(chosen.out, **content)
    if chosen.record:
        whole = chosen.suites is None and chosen.subjects is None
        baseline.save(baseline.GATEWAY, **(content if whole else baseline.again(content, chosen.suites or "all")))
    ours = {s.name for s in subjects if s.ours}
    lost = [n for n in run.failures if n.split(",")[0] in ours]
    worse: list[str] = []
    if chosen.check:
        then = baseline.load(baseline.GATEWAY)["results"]
        worse = [line for name in sorted(ours & set(results)) for line in baseline.regressions(results, then, name)]
        print("\n" + ("\n".join(["worse than the baseline:", *worse]) if worse else "no worse than the baseline"))
    return 1 if worse or lost else 0


if __name__ == "__main__":
    sys.exit(main())
