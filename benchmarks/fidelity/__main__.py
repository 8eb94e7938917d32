"""``python -m benchmarks.fidelity``: run the scripted agents through each gateway and compare what comes out.

Exit status: 0; 1 when a gateway of ours could not be measured; 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import httpx
import openai

from benchmarks.fidelity.measure import measure
from benchmarks.fidelity.score import Score
from benchmarks.fidelity.scripts import TURNS
from benchmarks.fidelity.subjects import COMPARED, Compared
from benchmarks.fidelity.table import tables
from benchmarks.gateway import baseline, machine
from benchmarks.gateway.environments import ROOT, Unavailable, tokenizer
from benchmarks.gateway.process import StartFailed

RECORDED = baseline.FOLDER / "fidelity.json"


async def run(chosen: list[Compared], seeds: int) -> tuple[dict[str, dict[str, Score]], dict[str, str]]:
    results: dict[str, dict[str, Score]] = {}
    failures: dict[str, str] = {}
    folder = await asyncio.to_thread(tokenizer)
    for compared in chosen:
        print(f"fidelity · {compared.subject.name}", file=sys.stderr, flush=True)
        try:
            results[compared.subject.name] = (await measure(compared, folder, seeds)).scores
        except (Unavailable, StartFailed, openai.APIError, httpx.HTTPError) as e:
            failures[compared.subject.name] = f"{type(e).__name__}: {e}"
    return results, failures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fidelity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subjects", help=f"comma-separated of {','.join(c.subject.name for c in COMPARED)}")
    parser.add_argument("--seeds", type=int, default=4, help="sessions per script (4)")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--record", action="store_true", help=f"write them to {RECORDED.relative_to(ROOT)}")
    asked = parser.parse_args(argv)
    known = {c.subject.name: c for c in COMPARED}
    names = asked.subjects.split(",") if asked.subjects else list(known)
    if unknown := [n for n in names if n not in known]:
        parser.error(f"unknown subject {unknown[0]!r}: choose from {', '.join(known)}")
    try:
        results, failures = asyncio.run(run([known[n] for n in names], asked.seeds))
    except Unavailable as e:
        parser.error(f"no tokenizer: {e}")
    print(tables(results))
    for name, why in failures.items():
        print(f"\n{name}: {why}")
    plain = {n: {s: vars(v) for s, v in scores.items()} for n, scores in results.items()}
    for path in [asked.out] * bool(asked.out) + [RECORDED] * asked.record:
        baseline.save(
            path, machine=machine.described(), seeds=asked.seeds, turns=TURNS, results=plain, failures=failures
        )
    return 1 if any(known[n].subject.ours for n in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
