"""Which groups of a batch are complete, and whether a complete one trains. Pure.

A group is decided once, when all its rollouts have ended, or when it has ``n`` survivors and more were started: with
enough survivors it is committed whole, with fewer it is dropped whole (a lone survivor's advantage would be its raw
reward). No rollout is ever replaced by a made-up row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollway_driver.verl.rows import Refusal, Session
from rollway_wire.problems import ContractViolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One complete group."""

    uid: str
    sessions: tuple[Session, ...]
    """The survivors, by index."""
    refusals: tuple[Refusal, ...]
    committed: bool

    @property
    def rows(self) -> int:
        return sum(len(s.rows) for s in self.sessions) if self.committed else 0


@dataclass(slots=True)
class Groups:
    """The groups of one batch that are still open."""

    uids: Iterable[str]
    n: int
    min_survivors: int
    extra: int = 0
    """Rollouts of each group beyond ``n``; the first ``n`` usable ones count."""
    _ended: dict[str, dict[int, Session | Refusal]] = field(init=False)
    _over: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._ended = {uid: {} for uid in self.uids}

    @property
    def open(self) -> frozenset[str]:
        return frozenset(self._ended)

    def take(self, uid: str, ended: Session | Refusal) -> Decided | None:
        """Record one rollout's end; the decision when it was the group's last, or its ``n``-th usable one. The same
        rollout twice counts once, and one that ends after its group was decided not at all.

        Raises:
            ContractViolation: a group or an index that was never asked for.
        """
        if uid in self._over and 0 <= ended.index < self.n + self.extra:
            return None
        if uid not in self._ended or not 0 <= ended.index < self.n + self.extra:
            raise ContractViolation(f"a result for group {uid}, rollout {ended.index}, that this batch did not ask for")
        so_far = self._ended[uid]
        so_far.setdefault(ended.index, ended)
        usable = sum(isinstance(e, Session) for e in so_far.values())
        return self._decide(uid) if usable == self.n or len(so_far) == self.n + self.extra else None

    def give_up(self, uid: str) -> Decided:
        """Decide an open group with what it has: it trains nothing, whatever came in."""
        decided = self._decide(uid)
        return Decided(uid=uid, sessions=decided.sessions, refusals=decided.refusals, committed=False)

    def _decide(self, uid: str) -> Decided:
        ended = [e for _, e in sorted(self._ended.pop(uid).items())]
        if self.extra:
            self._over.add(uid)
        sessions = tuple(e for e in ended if isinstance(e, Session))
        refusals = tuple(e for e in ended if isinstance(e, Refusal))
        return Decided(uid=uid, sessions=sessions, refusals=refusals, committed=len(sessions) >= self.min_survivors)
