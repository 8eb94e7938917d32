"""``rollway demo``: GRPO on a real small model through every part, on this machine, without a GPU.

verl's own trainer -> driver -> dispatcher -> AgentCore emulator -> an agent process per session -> gateway ->
verl's own vLLM server; tokens and rewards joined, trained on, weights synced, next step. Exit status: 0 when every
step trained, engine and trainer agreed on the log-probs and the weights changed; 1 when not; 2 when it could not start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from rollway_local.demo_plan import DEFAULT_MODEL, ROOT, DemoError, Plan, interpreter
from rollway_local.demo_process import Leashed
from rollway_local.demo_report import read_report
from rollway_local.demo_show import Progress, show_report
from rollway_local.demo_trainer import RunFiles, stack_keys, trainer_command, trainer_environment
from rollway_local.demo_watch import Moment, look, memory_gib

STACK_START_S = 180.0
POLL_S = 0.5
WEIGH_S = 8.0
"""Between looks at the memory, which cost some 10 ms a process."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="rollway demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default=DEFAULT_MODEL, help="%(default)s (made here), a local folder, or a hub id")
    made.add_argument(
        "--mode", choices=("exact", "auto"), default="exact", help="auto: a model that cannot be exact may run too"
    )
    made.add_argument("--tool-parser", default="hermes", help="vLLM's, for that model's tool calls (%(default)s)")
    made.add_argument("--steps", type=_count, default=2, help="GRPO steps (%(default)s)")
    made.add_argument("--prompts", type=_count, default=4, help="prompts per step (%(default)s)")
    made.add_argument("--rollouts", type=_count, default=4, help="rollouts per prompt (%(default)s)")
    made.add_argument("--max-tokens", type=_count, default=48, help="of one model call (%(default)s)")
    made.add_argument("--temperature", type=float, default=1.0, help="(%(default)s)")
    made.add_argument("--prompt-length", type=_count, default=256, help="budget in tokens (%(default)s)")
    made.add_argument("--response-length", type=_count, default=256, help="budget in tokens (%(default)s)")
    made.add_argument("--learning-rate", type=float, default=1e-5, help="(%(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of the tasks and their order (%(default)s)")
    made.add_argument("--threads", type=_count, default=min(8, os.cpu_count() or 1), help="(%(default)s)")
    made.add_argument("--agents-at-once", type=_count, default=8, help="agent processes alive (%(default)s)")
    made.add_argument("--agents", type=Path, help="the emulator's agents file (default: the demo's math agent)")
    made.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="any key of the trainer's"
    )
    made.add_argument("--dir", type=Path, default=ROOT / ".work" / "demo", help="models, data, runs (%(default)s)")
    return made


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    chosen = vars(parser().parse_args(arguments))
    plan = Plan(**{k: v for k, v in chosen.items() if k != "dir"}, folder=chosen["dir"].resolve())
    console = Console()
    try:
        return run(plan, console)
    except DemoError as e:
        console.print(f"rollway demo: {e}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("stopped")
        return 130


def run(plan: Plan, console: Console) -> int:
    """Everything from an empty folder to the verdict."""
    begin = time.monotonic()
    trainer_python = interpreter("ROLLWAY_TRAINER_PYTHON")
    folder = plan.new_run()
    files = RunFiles(folder)
    with ExitStack() as held, Progress(console, plan.steps) as progress:
        progress.say(Moment("starting S3, emulator, gateway, dispatcher", 0, 0, plan.prompts * plan.rollouts))
        stack_process = held.enter_context(_start_stack(plan, files))
        progress.say(Moment("making model and data", 0, 0, plan.prompts * plan.rollouts))
        model = _model(plan, trainer_python)
        data = _data(plan, files, trainer_python)
        stack = _stack_ready(stack_process, folder / "stack" / "stack.json")
        command = trainer_command(trainer_python, plan, files, model=model, data=data, stack=stack)
        trainer = held.enter_context(
            Leashed(
                command,
                environment=trainer_environment(plan, files) | stack_keys(stack),
                log=files.trainer_log,
                cwd=folder,
            )
        )
        peak = _watch(progress, plan, files, stack["dispatcher"], trainer, stack_process)
        status = trainer.status
        progress.say(Moment("ending", plan.steps, 0, 0))
    report = read_report(files, steps=plan.steps, status=status, exact=plan.mode == "exact")
    show_report(console, report, files, time.monotonic() - begin, peak, model)
    if status != 0:
        console.print(trainer.tail(), markup=False, highlight=False, soft_wrap=True)
    return 1 if report.problems else 0


def _watch(
    progress: Progress, plan: Plan, files: RunFiles, dispatcher: Mapping[str, str], trainer: Leashed, stack: Leashed
) -> float:
    """Follow the trainer to its end; the memory peak of everything, in GiB."""
    peak, weighed = 0.0, 0.0
    while trainer.status is None:
        progress.say(look(files, dispatcher, plan.steps, plan.prompts * plan.rollouts))
        if time.monotonic() - weighed > WEIGH_S:
            peak, weighed = max(peak, memory_gib(trainer.pid, stack.pid)), time.monotonic()
        if stack.status is not None:
            raise DemoError(f"the stack ended with status {stack.status}; its log ({stack.log}) ends:\n{stack.tail()}")
        time.sleep(POLL_S)
    return peak


def _start_stack(plan: Plan, files: RunFiles) -> Leashed:
    command = [sys.executable, "-m", "rollway_local", "up", "--dir", str(files.folder / "stack")]
    environment = {**os.environ, "ROLLWAY_GATEWAY_MODE": plan.mode}
    if plan.agents is not None:
        command += ["--agents", str(plan.agents.resolve())]
    else:
        environment["ROLLWAY_AGENT_PYTHON"] = str(interpreter("ROLLWAY_AGENT_PYTHON"))
    return Leashed(command, environment=environment, log=files.stack_log, cwd=files.folder)


def _stack_ready(process: Leashed, state: Path) -> dict[str, Any]:
    deadline = time.monotonic() + STACK_START_S
    while not state.is_file():
        if process.status is not None:
            raise DemoError(f"the stack did not start; its log ({process.log}) ends:\n{process.tail()}")
        if time.monotonic() > deadline:
            raise DemoError(f"the stack is not ready after {STACK_START_S:g} s; see {process.log}")
        time.sleep(POLL_S)
    found: dict[str, Any] = json.loads(state.read_text())
    return found


def _model(plan: Plan, python: Path) -> Path:
    """The model's folder: made, found, or fetched from the hub into its usual cache."""
    if plan.model == DEFAULT_MODEL:
        out = plan.folder / "models" / DEFAULT_MODEL
        _do([str(python), "-m", "rollway_local.models", DEFAULT_MODEL, "--out", str(out)], "make the model")
        return out
    if Path(plan.model).is_dir():
        return Path(plan.model).resolve()
    fetch = "import sys, huggingface_hub; print(huggingface_hub.snapshot_download(sys.argv[1]))"
    printed = _do([str(python), "-c", fetch, plan.model], f"find a folder or fetch a hub model {plan.model!r}")
    return Path(printed.splitlines()[-1])


def _data(plan: Plan, files: RunFiles, python: Path) -> Path:
    out = files.folder / "data"
    rows = [
        "--levels",
        "hard",
        "--train",
        str(max(64, 4 * plan.prompts * plan.steps)),
        "--val",
        "8",
        "--seed",
        str(plan.seed),
    ]
    _do([str(python), "-m", "rollway_driver.data", "arithmetic", "--out", str(out), *rows], "make the tasks")
    return out


def _do(command: list[str], what: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise DemoError(f"could not {what}: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
