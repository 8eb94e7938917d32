"""What the demo will do, where, and with which interpreters: everything decided before anything is started."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MODEL = "smollm2-calculator"
_INTERPRETERS = {
    "ROLLWAY_TRAINER_PYTHON": (".venv-trainer", "setup-trainer"),
    "ROLLWAY_AGENT_PYTHON": (".venv-agent", "setup-agent"),
}


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes are in tokens unless their name says otherwise."""

    model: str
    """``smollm2-calculator`` (made here), a local folder, or a hub id."""
    mode: str
    """The gateway's: exact or auto. With exact, a turn that is not exact fails the run."""
    tool_parser: str
    """vLLM's, for the model's way of writing tool calls."""
    steps: int
    prompts: int
    """GRPO groups per step."""
    rollouts: int
    """Per group."""
    max_tokens: int
    """Of one model call."""
    temperature: float
    prompt_length: int
    response_length: int
    learning_rate: float
    seed: int
    threads: int
    """Of the trainer and of the engine; they take turns."""
    agents_at_once: int
    agents: Path | None
    """The emulator's agents file; None: the demo's math agent."""
    overrides: list[str]
    """``KEY=VALUE`` of the trainer's configuration, over everything else."""
    folder: Path
    """Holds models/, data and one folder per run."""

    @property
    def max_model_len(self) -> int:
        return self.prompt_length + self.response_length

    def new_run(self) -> Path:
        """A fresh folder for one run."""
        run = self.folder / "runs" / time.strftime("%Y%m%d-%H%M%S")
        run.mkdir(parents=True)
        latest = self.folder / "latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(run)
        return run


def interpreter(variable: str) -> Path:
    """The Python of the trainer's or the agent's environment.

    Raises:
        DemoError: it is not there; names the make target and the variable.
    """
    folder, target = _INTERPRETERS[variable]
    found = Path(os.environ.get(variable) or ROOT / folder / "bin" / "python")
    if not found.is_file():
        raise DemoError(f"{found} is not there: run `make {target}`, or set {variable} to another environment's python")
    return found.absolute()
