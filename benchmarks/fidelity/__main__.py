"""``python -m benchmarks.fidelity``: run the scripted agents through each gateway and compare what comes out.

Exit status: 0; 1 when a gateway of ours could not be measured; 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import httpx
import openai

from benchmarks.fidelity.score import Score, score
from benchmarks.fidelity.scripted_engine import MODEL, ScriptedEngine, serving
from benchmarks.fidelity.scripts import SCRIPTS, THREADS, TOOLS, TURNS, Script, answers, echoed, opening
from benchmarks.fidelity.subjects import COMPARED, Compared
from benchmarks.gateway import baseline, machine
from benchmarks.gateway.bench import up
from benchmarks.gateway.environments import ROOT, Unavailable, tokenizer
from benchmarks.gateway.process import Process, StartFailed
from benchmarks.gateway.subjects import Launch, free_port
from benchmarks.gateway.table import markdown

RECORDED = baseline.FOLDER / "fidelity.json"


async def session(compared: Compared, url: str, script: Script, seed: int, client: httpx.AsyncClient) -> list[Any]:
    """Run one agent through its script; the rows the gateway hands out."""
    name = str(uuid.uuid4())
    opens = compared.subject.opens
    if opens is not None:
        call = opens(name)
        (
            await client.post(call.path, content=call.body, headers={"content-type": "application/json"})
        ).raise_for_status()
    base = url + compared.base.format(session=name)
    async with openai.AsyncOpenAI(base_url=base, api_key=compared.key.format(session=name), max_retries=0) as agent:
        histories = [opening(script, seed, thread) for thread in THREADS[: script.threads]]
        tools: dict[str, Any] = {"tools": TOOLS} if script.uses_tools else {}
        for turn, messages in ((turn, messages) for turn in range(TURNS) for messages in histories):
            got = await agent.chat.completions.create(model=MODEL, messages=messages, max_tokens=512, **tools)
            message = echoed(script, got.choices[0].message.model_dump(exclude_none=True))
            messages += [message, *answers(message, turn)]
    return await compared.harvest(client, name)


async def measure(compared: Compared, folder: Path, seeds: int) -> dict[str, Score]:
    """Scores by script.

    Raises:
        Unavailable, StartFailed: the gateway cannot be had here.
    """
    engine: ScriptedEngine = await serving(folder)
    work = Path(tempfile.mkdtemp(prefix="fidelity-"))
    gateway: Process | None = None
    try:
        port = free_port()
        command = compared.subject.command(Launch(port, engine.url, work))
        core = machine.cores().subject
        gateway = Process(command, core=core, log=work / "log", cwd=ROOT, environment=compared.subject.environment)
        url = f"http://127.0.0.1:{port}"
        await up(gateway, url, compared.subject)
        scores: dict[str, Score] = {}
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for script in SCRIPTS.values():
                total = scores[script.name] = Score()
                for seed in range(seeds):
                    rows = await session(compared, url, script, seed, client)
                    total.add(score(engine.drawn[script.name, seed], rows))
        return scores
    finally:
        if gateway is not None:
            gateway.stop()
        await engine.stop()
        shutil.rmtree(work)


def table(results: dict[str, dict[str, Score]]) -> str:
    head = ["", "turns exact / turns", "fidelity", "sequences per session", "turns trained as sampled", "wrong tokens",
            "row tokens"]  # fmt: skip
    lines = []
    for name, scores in results.items():
        all_of_it = Score()
        for one in scores.values():
            all_of_it.add(one)
        for row, s in [(name, all_of_it), *((f"· {script}", s) for script, s in scores.items())]:
            lines.append([
                row, f"{s.exact} / {s.turns}", f"{s.fidelity:.3f}", f"{s.sequences / s.sessions:.2f}",
                f"{s.trained} / {s.turns}", str(s.wrong_tokens), f"{s.row_tokens:,}",
            ])  # fmt: skip
    return markdown(head, lines)


async def run(chosen: list[Compared], seeds: int) -> tuple[dict[str, dict[str, Score]], dict[str, str]]:
    results: dict[str, dict[str, Score]] = {}
    failures: dict[str, str] = {}
    folder = await asyncio.to_thread(tokenizer)
    for compared in chosen:
        print(f"fidelity · {compared.subject.name}", file=sys.stderr, flush=True)
        try:
            results[compared.subject.name] = await measure(compared, folder, seeds)
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
    print(table(results))
    for name, why in failures.items():
        print(f"\n{name}: {why}")
    plain = {n: {s: vars(v) for s, v in scores.items()} for n, scores in results.items()}
    for path in [asked.out] * bool(asked.out) + [RECORDED] * asked.record:
        baseline.save(path, seeds=asked.seeds, turns=TURNS, results=plain, failures=failures)
    return 1 if any(known[n].subject.ours for n in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
