"""From results to samples, and from samples to numbers. Pure.

A sample counts for pass@k when the agent had its chance: scored by its reward, or wrong because the agent raised, ran
out of time or never asked the model. What the infrastructure spoilt (a container that died, a throttled start) says
nothing about the agent: it is left out and counted on its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rollway_driver.client.streaming import StreamedRollout
from rollway_driver.evaluation.pass_at_k import PassAtK, mean_pass_at_k
from rollway_wire.batch import RolloutResult, RolloutState
from rollway_wire.failures import FailureType

THE_AGENTS = frozenset({FailureType.AGENT_ERROR, FailureType.TIMED_OUT, FailureType.NO_TURNS})
"""Failures that count as a wrong answer."""


def sample_of(found: StreamedRollout, number: int, threshold: float) -> dict[str, Any]:
    """One line of the results. ``number``: of the input's samples, from 0."""
    rollout, trajectory, times = found.rollout, found.trajectory, found.rollout.timings
    failure = rollout.failure
    score = rollout.rewards[-1] if rollout.rewards else None
    begun = times.invoked_at or times.admitted_at
    return {
        "input_id": rollout.group_id,
        "sample": number,
        "state": rollout.state.value,
        "score": score,
        "correct": _correct(rollout, score, threshold),
        "rewards": rollout.rewards,
        "failure": None if failure is None else failure.type.value,
        "why": None if failure is None else failure.message,
        "seconds": times.finished_at - begun if times.finished_at and begun else None,
        "turns": None if trajectory is None else len(trajectory.turns),
        "sampled_tokens": None if trajectory is None else trajectory.ledger.sampled,
        "result": rollout.result,
        "session_id": rollout.session_id,
        "batch_id": rollout.batch_id,
        "cursor": found.cursor,
    }


def _correct(rollout: RolloutResult, score: float | None, threshold: float) -> bool | None:
    """None: it says nothing about the agent."""
    if rollout.failure is not None:
        return False if rollout.failure.type in THE_AGENTS else None
    return None if score is None else score >= threshold


def counts(found: StreamedRollout) -> bool:
    """Rollouts cancelled, or failed by a broken set-up, are no samples: a resumed run makes them up."""
    failure = found.rollout.failure
    broken = failure is not None and failure.type is FailureType.CONTRACT_ERROR
    return found.rollout.state is not RolloutState.CANCELLED and not broken


@dataclass(frozen=True, slots=True)
class Summary:
    samples: int
    scored: int
    """That have a reward."""
    mean_score: float | None
    counted: int
    """That count for pass@k."""
    correct: int
    pass_at: tuple[PassAtK, ...]
    failures: tuple[tuple[str, int], ...]
    """By type, the most frequent first."""

    @property
    def failed(self) -> int:
        return sum(n for _, n in self.failures)


def summarize(samples: Iterable[dict[str, Any]], ks: Sequence[int]) -> Summary:
    """The numbers of an evaluation, also of one under way."""
    by_input: defaultdict[str, list[bool]] = defaultdict(list)
    failures: Counter[str] = Counter()
    scores: list[float] = []
    total = 0
    for s in samples:
        total += 1
        if s["score"] is not None:
            scores.append(s["score"])
        if s["correct"] is not None:
            by_input[s["input_id"]].append(s["correct"])
        if s["failure"] is not None:
            failures[s["failure"]] += 1
    tallies = [(len(v), sum(v)) for v in by_input.values()]
    return Summary(
        samples=total,
        scored=len(scores),
        mean_score=sum(scores) / len(scores) if scores else None,
        counted=sum(n for n, _ in tallies),
        correct=sum(c for _, c in tallies),
        pass_at=tuple(mean_pass_at_k(tallies, k) for k in ks),
        failures=tuple(failures.most_common()),
    )
