"""What the scheduler remembers of a batch and of each of its rollouts that is not finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollway_dispatcher.line import Line
from rollway_dispatcher.order import Order, Room, room_of
from rollway_wire.batch import Group, RolloutState, Timings
from rollway_wire.failures import Failure


@dataclass(slots=True, kw_only=True, eq=False)
class Rollout:
    """One rollout. `ordinal` is its place in the batch; group by group, index by index."""

    batch_id: str
    ordinal: int
    group: int
    """Position of its group in the request."""
    group_id: str
    index: int
    state: RolloutState = RolloutState.PENDING
    attempt: int = 1
    session_id: str | None = None
    """Of the current attempt; kept while a runtime refuses, replaced by the next attempt's."""
    not_before: float = 0.0
    """Unix seconds; a pending rollout waits until then."""
    refused_since: float | None = None
    """When the runtime first refused this attempt."""
    reports: bool = False
    """This attempt's agent has reported: silence then means death."""
    suspicion: Failure | None = None
    """While collecting: what it is if S3 holds no result."""
    failure: Failure | None = None
    admitted_at: float | None = None
    invoked_at: float | None = None
    started_at: float | None = None
    noticed_at: float | None = None
    finished_at: float | None = None
    heard_at: float = 0.0
    """Last report, in memory only: after a restart an agent gets a whole window again."""

    @property
    def rollout_id(self) -> str:
        return f"{self.batch_id}/{self.group_id}/{self.index}"

    def timings(self) -> Timings:
        return Timings(
            admitted_at=self.admitted_at,
            invoked_at=self.invoked_at,
            started_at=self.started_at,
            noticed_at=self.noticed_at,
            finished_at=self.finished_at,
        )

    def begin_attempt(self, session_id: str, not_before: float) -> None:
        """Forget the failed attempt; the next one has its own session."""
        self.attempt += 1
        self.session_id, self.not_before = session_id, not_before
        self.refused_since, self.reports, self.suspicion = None, False, None
        self.admitted_at = self.invoked_at = self.started_at = self.noticed_at = None


@dataclass(slots=True)
class Standing:
    """How far one group is."""

    first: int
    """Ordinal of its first rollout; the others follow it."""
    size: int
    """Rollouts in all, extras included."""
    wanted: int
    """Results that decide it: its ``n``."""
    succeeded: int = 0
    open: int = 0
    """Not terminal, and not held back."""
    held: list[Rollout] = field(default_factory=list)
    """Extras that have not been let in, the next one last."""
    begun: bool = False
    """One of it has been admitted."""
    deaths: int = 0
    """Attempts that died or ran out of time, since this process knows the batch."""
    decided: bool = False
    """It has what it wants, and the rest of it was cancelled."""

    @property
    def lacking(self) -> int:
        return max(0, self.wanted - self.succeeded)


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """One batch under way. Finished rollouts are on disk, not here."""

    order: Order
    total: int
    created_at: float
    rollouts: dict[int, Rollout]
    """Not terminal, by ordinal."""
    published: int = 0
    """Results so far, which is the last result's sequence number."""
    usable: int = 0
    """Of them, succeeded."""
    rewardless: int = 0
    """Results without usable rewards, while none was usable."""
    cancelled: bool = False
    contract_error: str | None = None
    finished_at: float | None = None
    groups: list[Standing]
    """By the group's position in the request."""
    durations: list[float] = field(default_factory=list)
    """Seconds from receipt to result of each that succeeded; kept where hedging asks for their median."""
    held: int = 0
    """Extras held back, over all groups."""
    past_deadline: bool = False
    line: Line = field(init=False)
    running: dict[int, Rollout] = field(default_factory=dict)
    alive: int = 0
    """Starting, running or collecting."""
    stopping: set[str] = field(default_factory=set)
    """Sessions not yet confirmed stopped."""
    room: Room = field(init=False)

    def __post_init__(self) -> None:
        self.room, self.line = room_of(self.order.runtime), Line()

    @property
    def batch_id(self) -> str:
        return self.order.batch_id


def fresh_batch(order: Order, groups: Iterable[Group], now: float) -> Batch:
    """A batch as it arrives: every rollout pending, in order."""
    rollouts: dict[int, Rollout] = {}
    standings = []
    for position, g in enumerate(groups):
        size = g.n + order.policy.extra
        standings.append(Standing(len(rollouts), size, g.n))
        for index in range(size):
            n = len(rollouts)
            rollouts[n] = Rollout(batch_id=order.batch_id, ordinal=n, group=position, group_id=g.group_id, index=index)
    return Batch(order=order, total=len(rollouts), created_at=now, rollouts=rollouts, groups=standings)
