"""What a person sees: one live line while the demo runs, a table at its end."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from rollway_local.demo_report import Report, StepReport
from rollway_local.demo_trainer import RunFiles
from rollway_local.demo_watch import Moment


class Progress:
    """A line that stays in place on a terminal; elsewhere a line per change of phase and quarter of the rollouts."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._begin = time.monotonic()
        self._shown: tuple[str, str, int] | None = None
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, moment: Moment) -> None:
        seconds = time.monotonic() - self._begin
        where = f"step {moment.step}/{self._steps} " if moment.step else ""
        if self._live:
            line = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=max(1, moment.total), completed=moment.done, width=24)
            line.add_row(
                f"[bold]{where}{moment.phase}[/]", bar, f"{moment.done}/{moment.total} rollouts", f"{seconds:.0f} s"
            )
            self._live.update(line)
            return
        quarter = 4 * moment.done // max(1, moment.total)
        if (where, moment.phase, quarter) != self._shown:
            self._shown = (where, moment.phase, quarter)
            count = f" {moment.done}/{moment.total}" if moment.phase == "rollouts" else ""
            self._console.print(f"[{seconds:6.1f} s] {where}{moment.phase}{count}", markup=False, highlight=False)


def show_report(
    console: Console, report: Report, files: RunFiles, seconds: float, peak_gib: float, model: Path
) -> None:
    """The table, the verdict, and where everything lies."""
    console.print()
    if report.steps:
        console.print(_table(report, model))
    console.print("weights as vLLM received them: " + " -> ".join(w[:12] for w in report.weights), highlight=False)
    console.print(f"trajectories   {files.trajectories}", soft_wrap=True, highlight=False)
    console.print(f"trainer's log  {files.trainer_log}", soft_wrap=True, highlight=False)
    console.print(f"services' logs {files.folder / 'stack' / 'logs'}", soft_wrap=True, highlight=False)
    console.print(f"{seconds:.0f} s in all, memory peak {peak_gib:.1f} GiB", highlight=False)
    for reason in sorted({reason for s in report.steps for reason in s.mirror_reasons}):
        console.print(f"not exact: {reason}", style="yellow", markup=False, highlight=False)
    for problem in report.problems:
        console.print(f"FAILED: {problem}", style="bold red", markup=False, highlight=False)
    if not report.problems:
        console.print(
            f"OK: {len(report.steps)} GRPO steps trained, exact log-probs, new weights each", style="bold green"
        )


def _table(report: Report, model: Path) -> Table:
    """A column per step, so that it fits 80 characters."""
    table = Table(title=f"GRPO on {model.name}", title_justify="left")
    table.add_column("step")
    for s in report.steps:
        table.add_column(str(s.step), justify="right")
    cells = [_cells(s) for s in report.steps]
    for name in cells[0] if cells else ():
        table.add_row(name, *(column[name] for column in cells))
    return table


def _cells(s: StepReport) -> dict[str, str]:
    failed = ", ".join(f"{n} {kind}" for kind, n in s.failures.items())
    return {
        "policy version sampled": str(s.policy_version),
        "rollouts trained": f"{s.rollouts_trained} of {s.rollouts}",
        "groups trained": f"{s.groups_trained} of {s.groups}",
        "failures": failed or "none",
        "reward mean": _figure(s.reward_mean, ".4f"),
        "reward min .. max": f"{_figure(s.reward_min, '.3f')} .. {_figure(s.reward_max, '.3f')}",
        "model calls per rollout": _figure(s.turns, ".2f"),
        "tool calls per rollout": _figure(s.tool_calls, ".2f"),
        "trained tokens": str(s.trained_tokens),
        "sequences per session": _figure(s.sequences_per_session, ".2f"),
        "fidelity (turns exact / turns)": _figure(s.fidelity, ".3f"),
        "ledger": _ledger(s.ledger),
        "probability difference to trainer, max": _figure(s.probability_difference, ".1e"),
        "Pearson with trainer": _figure(s.pearson, ".7f"),
        "largest advantage": _figure(s.largest_advantage, ".2f"),
        "gradient norm": _figure(s.gradient_norm, ".2f"),
        "seconds of rollouts": _figure(s.rollout_seconds, ".0f"),
        "seconds of the step": _figure(s.seconds, ".0f"),
    }


def _ledger(buckets: dict[str, int]) -> str:
    """What was sampled, and where it went; buckets that hold nothing are left out."""
    held = [f"{n} {name}" for name, n in buckets.items() if n and name != "sampled"]
    return f"{buckets['sampled']} sampled = {' + '.join(held) or '0'}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
