"""A cluster in numbers, and what becomes of the agents on it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from rollway_wire.batch import Limits


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Times in seconds."""

    groups: int
    n: int
    max_concurrent: int
    tps: float = 25.0
    cold_start_s: float = 8.0
    """Median; lognormal with sigma 0.4."""
    work_s: float = 1200.0
    """Median of an agent's work at full engine speed; lognormal."""
    sigma: float = 1.0
    longest_s: float = 8 * 3600.0
    dies: float = 0.01
    """Probability that an attempt dies on the way."""
    hangs: float = 0.001
    """Probability that an attempt hangs until its time limit."""
    engine_slots: int = 10_000
    """Rollouts that the engines serve at full speed."""
    holds_at: float | None = None
    """Admission pauses while more than so many times `engine_slots` are alive; None: it does not look."""
    window_s: float = 20.0
    quota_tps: float | None = None
    """Starts that the runtime takes a second; None: whatever `tps` sends."""
    quota_burst: int = 1
    """Starts that it takes at once after a rest."""
    max_attempts: int = Limits().max_attempts
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of one attempt, whatever the policy."""

    cold_start_s: float
    work_s: float
    """At full engine speed."""
    end: Literal["ok", "raise", "die", "hang"] = "ok"
    dies_after_s: float = 0.0


class Drawn:
    """Fates drawn from a rollout's id and attempt."""

    def __init__(self, cluster: Cluster) -> None:
        self._c = cluster

    def __call__(self, rollout_id: str, attempt: int) -> Fate:
        c, draw = self._c, random.Random(f"{self._c.seed} {rollout_id} {attempt}")
        cold = c.cold_start_s * draw.lognormvariate(0, 0.4)
        work = min(c.longest_s, c.work_s * draw.lognormvariate(0, c.sigma))
        luck = draw.random()
        if luck < c.dies:
            return Fate(cold_start_s=cold, work_s=work, end="die", dies_after_s=draw.random() * work)
        return Fate(cold_start_s=cold, work_s=work, end="ok" if luck > c.dies + c.hangs else "hang")
