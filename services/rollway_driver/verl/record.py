"""What a batch leaves for people: one JSON line of figures, and its trajectories as packed files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rollway_driver.verl.groups import Decided
from rollway_wire.batch import RolloutResult
from rollway_wire.codec import dump_packed, trajectory_tree
from rollway_wire.tokens import Ledger, Trajectory

Finished = tuple[RolloutResult, Trajectory | None]


@dataclass(slots=True, kw_only=True)
class BatchRecord:
    """The figures of one batch while it runs."""

    step: int
    validate: bool
    policy_version: int
    groups: int
    rollouts: int
    batch_id: str | None = None
    decided: list[Decided] = field(default_factory=list)
    error: str | None = None

    def line(self, *, seconds: float, trajectories: Path | None) -> dict[str, Any]:
        """Rewards, turns, tokens and sequences are over the sessions of committed groups."""
        sessions = [s for d in self.decided if d.committed for s in d.sessions]
        refusals = [r for d in self.decided for r in d.refusals]
        scores = [s.score for s in sessions]
        return {
            "step": self.step,
            "validate": self.validate,
            "batch_id": self.batch_id,
            "policy_version": self.policy_version,
            "groups": self.groups,
            "groups_trained": sum(d.committed for d in self.decided),
            "groups_of_equal_reward": sum(_equal(d) for d in self.decided if d.committed),
            "rollouts": self.rollouts,
            "rollouts_trained": len(sessions),
            "failures": dict(Counter(r.type for r in refusals)),
            "failure_messages": sorted({f"{r.type}: {r.message}" for r in refusals})[:8],
            "reward_mean": fmean(scores) if scores else None,
            "reward_min": min(scores, default=None),
            "reward_max": max(scores, default=None),
            "turns_mean": fmean([s.turns for s in sessions]) if sessions else None,
            "trained_tokens": sum(s.trained_tokens for s in sessions),
            "rows": sum(len(s.rows) for s in sessions),
            "longest_row": max((r.length for s in sessions for r in s.rows), default=0),
            "sequences_per_session": sum(len(s.rows) for s in sessions) / len(sessions) if sessions else None,
            "fidelity": sum(s.exact_turns for s in sessions) / max(1, sum(s.turns for s in sessions))
            if sessions
            else None,
            "mirror_reasons": sorted({s.mirror_reason for s in sessions if s.mirror_reason is not None})[:8],
            "ledger": {k: sum(getattr(s.ledger, k) for s in sessions) for k in Ledger.__dataclass_fields__},
            "seconds": round(seconds, 3),
            "trajectories": None if trajectories is None else str(trajectories),
            "error": self.error,
        }


def _equal(decided: Decided) -> bool:
    return len({s.score for s in decided.sessions}) == 1


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append one JSON line; the folder is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line, allow_nan=False) + "\n")


def save_group(folder: Path, uid: str, finished: Sequence[Finished]) -> None:
    """Write ``{uid}.rwpk``: packed ``{"results": [{"rollout": …, "trajectory": …}]}``, as the dispatcher sends it."""
    folder.mkdir(parents=True, exist_ok=True)
    results = [
        {"rollout": r.model_dump(mode="json"), "trajectory": None if t is None else trajectory_tree(t)}
        for r, t in finished
    ]
    part = folder / f".{uid}.part"
    part.write_bytes(dump_packed({"results": results}))
    part.rename(folder / f"{uid}.rwpk")
