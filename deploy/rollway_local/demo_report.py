"""What a run's files say: a row per step, and whether the run was what it claims to be. Pure but for reading files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollway_local.demo_trainer import RunFiles
from rollway_wire.codec import load_packed

MIN_PEARSON = 0.999
"""Correlation of the sampled tokens' probabilities, engine's against trainer's. Below: they run different policies."""
_NO_ADVANTAGE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One training step. A figure is None where the run did not get to it."""

    step: int
    policy_version: int | None
    rollouts: int
    rollouts_trained: int
    failures: dict[str, int]
    groups: int
    groups_trained: int
    reward_mean: float | None
    reward_min: float | None
    reward_max: float | None
    turns: float | None
    tool_calls: float | None
    """Per rollout, as the agents count those they carried out; None where they do not."""
    trained_tokens: int
    sequences_per_session: float | None
    fidelity: float | None
    """Turns exact / turns, of the sessions that trained."""
    mirror_reasons: tuple[str, ...]
    """Why sessions were not exact."""
    ledger: dict[str, int]
    """Where every sampled token of the sessions that trained went."""
    probability_difference: float | None
    pearson: float | None
    largest_advantage: float | None
    gradient_norm: float | None
    rollout_seconds: float
    seconds: float | None
    trained: bool
    """verl finished the step."""


@dataclass(frozen=True, slots=True)
class Report:
    steps: tuple[StepReport, ...]
    weights: tuple[str, ...]
    """SHA-256 of the weights as vLLM received them, one per update, the first before step 1."""
    problems: tuple[str, ...]
    """Why the run does not count; empty when it does."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole JSON lines of a file that may still grow, or not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def read_report(files: RunFiles, *, steps: int, status: int | None, exact: bool = True) -> Report:
    """The report of a run whose trainer ended with ``status``; ``exact``: every turn had to be."""
    trained = {line["step"]: line["data"] for line in read_lines(files.trainer) if "actor/grad_norm" in line["data"]}
    batches = [line for line in read_lines(files.batches) if not line["validate"]]
    made = tuple(_step(line, trained.get(line["step"])) for line in batches)
    weights = tuple(line["sha256"] for line in read_lines(files.weights))
    return Report(made, weights, (*_problems(made, weights, steps, status), *_token_problems(made, exact)))


def _step(batch: dict[str, Any], trained: dict[str, Any] | None) -> StepReport:
    t = trained or {}
    ends = [abs(t[f"critic/advantages/{end}"]) for end in ("max", "min") if f"critic/advantages/{end}" in t]
    return StepReport(
        step=batch["step"],
        policy_version=batch["policy_version"],
        rollouts=batch["rollouts"],
        rollouts_trained=batch["rollouts_trained"],
        failures=batch["failures"],
        groups=batch["groups"],
        groups_trained=batch["groups_trained"],
        reward_mean=batch["reward_mean"],
        reward_min=batch["reward_min"],
        reward_max=batch["reward_max"],
        turns=batch["turns_mean"],
        tool_calls=_tool_calls(batch["trajectories"]),
        trained_tokens=batch["trained_tokens"],
        sequences_per_session=batch["sequences_per_session"],
        fidelity=batch["fidelity"],
        mirror_reasons=tuple(batch["mirror_reasons"]),
        ledger=batch["ledger"],
        probability_difference=t.get("training/rollout_probs_diff_max"),
        pearson=t.get("training/rollout_actor_probs_pearson_corr"),
        largest_advantage=max(ends, default=None),
        gradient_norm=t.get("actor/grad_norm"),
        rollout_seconds=batch["seconds"],
        seconds=t.get("timing_s/step"),
        trained=trained is not None,
    )


def _problems(steps: Sequence[StepReport], weights: Sequence[str], wanted: int, status: int | None) -> list[str]:
    found = []
    if status != 0:
        found.append(f"the trainer ended with status {status}")
    done = [s for s in steps if s.trained]
    if len(done) < wanted:
        found.append(f"{len(done)} of {wanted} steps were trained")
    for s in done:
        if s.trained_tokens == 0 or not _positive(s.gradient_norm) or not _over(s.largest_advantage, _NO_ADVANTAGE):
            found.append(
                f"step {s.step} trained nothing: {s.trained_tokens} tokens, largest advantage {s.largest_advantage}, "
                f"gradient norm {s.gradient_norm}"
            )
        if not _over(s.pearson, MIN_PEARSON - 1e-12):
            found.append(
                f"step {s.step}: Pearson {s.pearson} of engine and trainer probabilities is under {MIN_PEARSON}"
            )
    if len(weights) < len(done) + 1:
        found.append(f"{len(weights)} weight updates reached vLLM, {len(done) + 1} were due")
    for i, (before, after) in enumerate(pairwise(weights), 1):
        if before == after:
            found.append(f"the weights that vLLM received after step {i} are those from before it")
    return found


def _token_problems(steps: Sequence[StepReport], exact: bool) -> list[str]:
    """What was sampled and how it was kept: no turn from other tokens than the recorded ones, no token unaccounted."""
    found = []
    for s in steps:
        if exact and s.rollouts_trained and s.fidelity != 1.0:
            why = "; ".join(s.mirror_reasons) or "no reason was recorded"
            found.append(f"step {s.step}: fidelity is {s.fidelity}, not 1 ({why}); --mode auto lets such a model run")
        kept = sum(n for name, n in s.ledger.items() if name != "sampled")
        if kept != s.ledger["sampled"]:
            found.append(f"step {s.step}: the ledger does not close: {s.ledger['sampled']} sampled, {kept} accounted")
        if s.ledger["trained"] != s.trained_tokens:
            found.append(
                f"step {s.step}: {s.trained_tokens} tokens are in the rows' loss, {s.ledger['trained']} in the ledger"
            )
    return found


def _tool_calls(folder: str | None) -> float | None:
    """Mean over the rollouts whose agent returned ``tool_calls``."""
    counts = []
    for path in sorted(Path(folder).glob("*.rwpk")) if folder else ():
        results = [entry["rollout"]["result"] or {} for entry in load_packed(path.read_bytes())["results"]]
        counts += [result["tool_calls"] for result in results if "tool_calls" in result]
    return sum(counts) / len(counts) if counts else None


def _over(value: float | None, least: float) -> bool:
    return value is not None and math.isfinite(value) and value > least


def _positive(value: float | None) -> bool:
    return _over(value, 0.0)
