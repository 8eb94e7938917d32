"""``python -m benchmarks.update``: the same scripted rollouts as training rows of each gateway, through verl's actor.

Exit status: 0; 1 when it could not be measured; 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fidelity.harvest import Row
from benchmarks.fidelity.measure import Measured, measure
from benchmarks.fidelity.subjects import COMPARED
from benchmarks.fidelity.table import total
from benchmarks.gateway import baseline, machine
from benchmarks.gateway.environments import ROOT, Unavailable, small_model, tokenizer, trainer_python
from benchmarks.gateway.process import StartFailed
from benchmarks.update.table import text

RECORDED = baseline.FOLDER / "update.json"
NAMES = ("rollway-mirror", "rollway-exact")
"""The first is what the other is compared with."""


class Failed(RuntimeError):
    """verl's actor ended without its numbers; the message ends with what it said."""


async def gather(seeds: int) -> dict[str, Measured]:
    """What each gateway hands out of the same sessions."""
    folder = await asyncio.to_thread(tokenizer)
    known = {c.subject.name: c for c in COMPARED}
    return {name: await measure(known[name], folder, seeds) for name in NAMES}


def seconds(given: dict[str, list[Row]], model: Path, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each update by gateway.

    Raises:
        Unavailable, Failed.
    """
    found: dict[str, list[float]] = {name: [] for name in given}
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "rows.json"
        path.write_text(json.dumps(given))
        actor = Path(__file__).with_name("actor.py")
        command = [str(trainer_python()), str(actor), str(path), "--model", str(model), "--repeats", str(repeats)]
        with (
            (Path(work) / "log").open("w+") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=work) as process,
        ):
            for line in process.stdout or ():
                if line.startswith("{"):
                    said = json.loads(line)
                    found[said["name"]].append(said["cpu_s"])
                    print(line, end="", file=sys.stderr, flush=True)
            if process.wait():
                raise Failed((Path(work) / "log").read_text()[-3000:])
    return found


def described(found: Measured, took: list[float]) -> dict[str, Any]:
    scores = total(found.scores)
    return {
        "sessions": scores.sessions, "sequences": scores.sequences, "tokens": scores.row_tokens,
        "cpu_s": [round(s, 2) for s in took],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.update", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="sessions per script (1)")
    parser.add_argument("--repeats", type=int, default=3, help="updates per gateway (3)")
    parser.add_argument(
        "--model",
        type=Path,
        help="folder of another model than a random Llama of 13 M parameters; SmolLM2's ids fit it",
    )
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--record", action="store_true", help=f"write them to {RECORDED.relative_to(ROOT)}")
    asked = parser.parse_args(argv)
    about = machine.described()
    try:
        model = asked.model or small_model()
        given = asyncio.run(gather(asked.seeds))
        took = seconds({name: m.rows for name, m in given.items()}, model.resolve(), asked.repeats)
    except (Unavailable, StartFailed, Failed) as e:
        print(f"not measured: {e}", file=sys.stderr)
        return 1
    results = {name: described(given[name], took[name]) for name in NAMES}
    content = {"machine": about, "model": model.name, "seeds": asked.seeds, "results": results}
    print(text(content))
    for path in [asked.out] * bool(asked.out) + [RECORDED] * asked.record:
        baseline.save(path, **content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
