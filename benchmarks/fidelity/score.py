"""A session's rows against what the engine was prompted with and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fidelity.harvest import Row
from benchmarks.fidelity.scripted_engine import Drawn


@dataclass
class Score:
    """Sums over sessions."""

    sessions: int = 0
    turns: int = 0
    """Calls the engine answered."""
    exact: int = 0
    """Turns whose prompt, as the engine got it, is what was prompted and sampled before in its conversation plus what
    is new; or that begin one."""
    trained: int = 0
    """Turns whose sampled tokens stand in exactly one row's loss, after the very prompt they were sampled from."""
    sequences: int = 0
    sampled_tokens: int = 0
    wrong_tokens: int = 0
    """Trained, and not sampled there by the engine."""
    row_tokens: int = 0
    """Of all rows: what a trainer computes on."""

    @property
    def fidelity(self) -> float:
        return self.exact / self.turns if self.turns else 0.0

    def add(self, other: Score) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def score(drawn: Sequence[Drawn], rows: Sequence[Row]) -> Score:
    """One session. ``drawn``: its calls in order; ``rows``: what the gateway hands out."""
    before: dict[str, tuple[int, ...]] = {}
    exact = 0
    for call in drawn:
        known = before.get(call.thread, ())
        exact += call.prompt[: len(known)] == known
        before[call.thread] = call.prompt + call.sampled
    found = Score(
        sessions=1, turns=len(drawn), exact=exact, sequences=len(rows),
        sampled_tokens=sum(len(call.sampled) for call in drawn), row_tokens=sum(len(ids) for ids, _ in rows),
    )  # fmt: skip
    times = dict.fromkeys(range(len(drawn)), 0)
    for ids, mask in rows:
        right = set()
        for turn, (_, prompt, sampled) in enumerate(drawn):
            lo, hi = len(prompt), len(prompt) + len(sampled)
            if tuple(ids[:hi]) == prompt + sampled and all(mask[lo:hi]):
                times[turn] += 1
                right.update(range(lo, hi))
        found.wrong_tokens += sum(trained and at not in right for at, trained in enumerate(mask))
    found.trained = sum(n == 1 for n in times.values())
    return found
