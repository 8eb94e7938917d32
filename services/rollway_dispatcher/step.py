"""The scheduler's words: news that comes in, and a step (what to write, then what to do) that goes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.rollout import Batch, Rollout
from rollway_wire.failures import Failure


@dataclass(frozen=True, slots=True)
class Outcome:
    """A collected result. ``failure`` None means it may train."""

    failure: Failure | None
    rewards: list[float] | None = None
    result: dict[str, Any] | None = None
    """The saved object without the echoed payload."""
    trajectory: bytes | None = None
    """Packed tree, as the gateway sealed it; of a failed rollout, for inspection only."""
    rewardless: bool = False
    """The failure is that the agent returned no usable rewards."""


# News.


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch is on disk."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Happened:
    """INVOKED, NOTICED or SUSPECTED, of the session named."""

    session_id: str
    trigger: Trigger
    failure: Failure | None = None
    """With SUSPECTED: of what."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    session_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Collected:
    session_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Heard:
    """The first report of a session."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The runtime confirmed that the session is gone."""

    session_id: str


@dataclass(frozen=True, slots=True)
class CancelBatch:
    batch_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CancelRollout:
    batch_id: str
    ordinal: int
    reason: str


@dataclass(frozen=True, slots=True)
class Pressure:
    """The engines of a pool have more than they can serve, or no longer."""

    pool: str
    pressed: bool


News = Arrived | Happened | StartFailed | Collected | Heard | Stopped | CancelBatch | CancelRollout | Pressure


# What to do, once written.


@dataclass(frozen=True, slots=True)
class Start:
    batch_id: str
    rollout_id: str
    group: int
    group_id: str
    session_id: str
    resumed: bool = False
    """It may have been started before we were killed: look for its result, then ask again for the same session."""


@dataclass(frozen=True, slots=True)
class Watch:
    batch_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Collect:
    batch_id: str
    rollout_id: str
    group_id: str
    session_id: str
    suspicion: Failure | None


@dataclass(frozen=True, slots=True)
class Stop:
    batch_id: str
    session_id: str
    since: float
    sealed: bool = False
    """The gateway session is known to be sealed already."""


@dataclass(frozen=True, slots=True)
class Poll:
    """List the batch's prefix for as long as it is under way."""

    batch_id: str


Effect = Start | Watch | Collect | Stop | Poll


@dataclass(frozen=True, slots=True)
class Published:
    """One line of a batch's results."""

    rollout: Rollout
    seq: int
    """1 for the batch's first result; the cursor."""
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Retried:
    """An attempt that failed and is followed by another."""

    batch_id: str
    rollout_id: str
    session_id: str
    attempt: int
    failure: Failure


@dataclass(slots=True)
class Step:
    """One group commit and what follows from it. Nothing in ``effects`` may begin before the rest is on disk."""

    rollouts: dict[str, Rollout] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)
    stops_opened: list[Stop] = field(default_factory=list)
    stops_closed: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    retried: list[Retried] = field(default_factory=list)
    """To be told of; `rollouts` has what follows from it."""

    @property
    def writes(self) -> bool:
        return bool(self.rollouts or self.batches or self.published or self.stops_opened or self.stops_closed)

    @property
    def batch_ids(self) -> set[str]:
        """The batches that it changes."""
        rollouts = {r.batch_id for r in self.rollouts.values()} | {p.rollout.batch_id for p in self.published}
        return rollouts | self.batches.keys() | {s.batch_id for s in self.stops_opened}

    def without(self, batch_ids: frozenset[str]) -> Step:
        """What is left of it when some batches are no longer ours."""
        return Step(
            rollouts={k: r for k, r in self.rollouts.items() if r.batch_id not in batch_ids},
            batches={k: b for k, b in self.batches.items() if k not in batch_ids},
            published=[p for p in self.published if p.rollout.batch_id not in batch_ids],
            stops_opened=[s for s in self.stops_opened if s.batch_id not in batch_ids],
            stops_closed=self.stops_closed,
            effects=[e for e in self.effects if e.batch_id not in batch_ids],
            retried=[r for r in self.retried if r.batch_id not in batch_ids],
        )
