"""The peers' own environments: one pinned list each, kept under .work/bench and made again when its list changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".work/bench"
PINS = ROOT / "deploy/envs"


class Unavailable(RuntimeError):
    """A subject cannot be measured here; the message says what is missing."""


def interpreter(name: str) -> Path:
    """The interpreter of the environment pinned in ``deploy/envs/bench-NAME.txt``.

    Raises:
        Unavailable: it could not be made.
    """
    pins = PINS / f"bench-{name}.txt"
    stamp = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    folder = WORK / f"env-{name}"
    ready = folder / "ready"
    if not ready.is_file() or ready.read_text() != stamp:
        print(f"making the environment of {name} in {folder.relative_to(ROOT)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        python = folder / "bin/python"
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "-r",
                str(pins),
            ],
        ):
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise Unavailable(f"its environment cannot be made: {ended.stderr.strip()[-300:]}")
        ready.write_text(stamp)
    return folder / "bin/python"


def tokenizer() -> Path:
    """A folder with SmolLM2's tokenizer and this project's chat template, for gateways that render.

    ``BENCH_TOKENIZER`` names one; else it is SmolLM2's folder.

    Raises:
        Unavailable: there is neither.
    """
    given = os.environ.get("BENCH_TOKENIZER")
    if given:
        if not (Path(given) / "tokenizer.json").is_file():
            raise Unavailable(f"BENCH_TOKENIZER={given} holds no tokenizer.json")
        return Path(given)
    return smollm2()


def smollm2() -> Path:
    """The whole model, made once with the trainer's environment.

    Raises:
        Unavailable: there is no such environment, or the model cannot be made.
    """
    folder = WORK / "smollm2"
    command = [str(trainer_python()), "-m", "rollway_local.models", "smollm2", "--out", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise Unavailable(f"SmolLM2 cannot be made: {ended.stderr.strip()[-300:]}")
    return folder


def small_model() -> Path:
    """A random model that takes SmolLM2's ids, small enough to train on one thread; made once.

    Raises:
        Unavailable: there is no trainer's environment, or the model cannot be made.
    """
    folder = WORK / "llama-13m"
    if not (folder / "tokenizer.json").is_file():
        script = ROOT / "benchmarks/update/small_model.py"
        command = [str(trainer_python()), str(script), str(tokenizer()), str(folder)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise Unavailable(f"the small model cannot be made: {ended.stderr.strip()[-300:]}")
    return folder


def trainer_python() -> Path:
    """Raises:
    Unavailable: the trainer's environment is not there."""
    found = Path(os.environ.get("ROLLWAY_TRAINER_PYTHON", ROOT / ".venv-trainer/bin/python"))
    if not found.is_file():
        raise Unavailable(
            "make setup-trainer first (to render alone, set BENCH_TOKENIZER to a folder with a tokenizer)"
        )
    return found
