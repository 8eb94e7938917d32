"""The account of a soak: what the trainers got, against what the runtime, the gateway and S3 saw of it.

`violations` is empty, or says what was lost, doubled, started without a cause or left behind.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollway_driver.client import FinishedRollout
from rollway_wire.batch import RolloutResult, RolloutState
from rollway_wire.failures import RETRYABLE, FailureType
from tests.chaos.trainers import MAX_ATTEMPTS, Posted

EXPECTED = {"raise": FailureType.AGENT_ERROR, "hang": FailureType.TIMED_OUT, "poison": FailureType.AGENT_DIED}
"""How a kind of agent fails. The others succeed."""
MENDABLE = RETRYABLE - {FailureType.INCOMPLETE_CAPTURE, FailureType.THROTTLED}
"""Failures that chaos may bring about more often than a rollout is tried: this gateway loses no tokens, and no storm
outlasts the dispatcher's patience."""


@dataclass
class Session:
    """One session, as everybody but the dispatcher saw it."""

    rollout_id: str
    began: int = 0
    """How often its agent began to work."""
    ended: int = 0
    """How often its container was lost: it died by itself, or was killed."""
    saved: bool = False


@dataclass
class Evidence:
    """What is left when all is over."""

    opened: Mapping[str, Mapping[str, Any]]
    """Gateway sessions by id, with the metadata the dispatcher gave them."""
    sealed: set[str]
    diary: Path
    killed: set[str]
    objects: Mapping[str, Mapping[str, Any]]
    """Saved results by session id."""
    log: Sequence[Mapping[str, Any]]
    """Lines of all dispatchers."""
    alive: Sequence[str]
    """Sessions that still run."""
    kept: Sequence[str]
    """Sessions that the dispatcher still has to stop."""

    def sessions(self) -> dict[str, Session]:
        found = {s: Session(spec["metadata"]["rollout_id"]) for s, spec in self.opened.items()}
        for path in self.diary.iterdir():
            said = Counter(json.loads(line)["what"] for line in path.read_text().splitlines())
            session = found[path.name]
            session.began, session.saved = said["began"], path.name in self.objects
            session.ended = said["died"] + (path.name in self.killed)
        return found

    def causes(self) -> dict[str, str]:
        """Why an attempt was followed by another, by its session, as the dispatchers logged it."""
        return {str(e["session_id"]): str(e["failure"]) for e in self.log if e.get("event") == "attempt_failed"}


@dataclass
class Account:
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def check(self, posted: Iterable[Posted], evidence: Evidence) -> None:
        sessions, causes = evidence.sessions(), evidence.causes()
        attempts: defaultdict[str, list[str]] = defaultdict(list)
        for session_id, session in sessions.items():
            attempts[session.rollout_id].append(session_id)
        for batch in posted:
            self.counts["batches"] += 1
            self._check_once(batch)
            for finished in batch.results:
                self._check_outcome(batch, finished, evidence, sessions)
                self._check_starts(finished.rollout, attempts[finished.rollout.rollout_id], sessions, causes)
        for session_id, session in sessions.items():
            self._check_session(session_id, session, evidence)
        self._check_left(evidence)

    def _wrong(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.violations.append(f"{kind}: {what}")

    def _check_once(self, batch: Posted) -> None:
        """Every rollout one result, in the same order however often it is read."""
        ids = Counter(f.rollout.rollout_id for f in batch.results)
        self.counts["rollouts"] += len(batch.expected())
        for rollout_id in batch.expected() - ids.keys():
            self._wrong("lost", f"{rollout_id} has no result")
        for rollout_id, n in ids.items():
            if n > 1 or rollout_id not in batch.expected():
                self._wrong("doubled", f"{rollout_id} has {n} results")
        if [f.rollout for f in batch.again] != [f.rollout for f in batch.results]:
            self._wrong("doubled", f"{batch.batch_id} reads differently the second time")

    def _check_outcome(
        self, batch: Posted, finished: FinishedRollout, evidence: Evidence, sessions: Mapping[str, Session]
    ) -> None:
        r = finished.rollout
        self.counts[f"{r.state}" + (f": {r.failure.type}" if r.failure and r.state is RolloutState.FAILED else "")] += 1
        saved = evidence.objects.get(r.session_id or "")
        if r.state is RolloutState.SUCCEEDED:
            self._check_success(batch, finished, saved)
            return
        if r.rewards is not None or r.failure is None:
            self._wrong("wrong outcome", f"{r.rollout_id} is {r.state} with rewards {r.rewards}, failure {r.failure}")
        if not (_expects(batch, r) or _died_unseen(r, sessions)):
            self._wrong("wrong outcome", f"{r.rollout_id} ({batch.kind}) is {r.state} after {r.attempt}: {r.failure}")
        if r.state is RolloutState.FAILED and r.failure and r.failure.type in MENDABLE and saved is not None:
            self._wrong("lost", f"{r.rollout_id} failed as {r.failure.type}, and S3 has the result of {r.session_id}")

    def _check_success(self, batch: Posted, finished: FinishedRollout, saved: Mapping[str, Any] | None) -> None:
        r, trajectory = finished
        group = next(g for g in batch.request.groups if g.group_id == r.group_id)
        if batch.kind != "ok" or saved is None or r.rewards != [saved["rewards"]]:
            self._wrong("wrong outcome", f"{r.rollout_id} ({batch.kind}) succeeded with {r.rewards}, S3 has {saved}")
        elif r.rewards != [group.payload["reward"]]:
            self._wrong("wrong outcome", f"{r.rollout_id} has the reward {r.rewards} of another input")
        if trajectory is None or trajectory.session_id != r.session_id or not trajectory.turns:
            self._wrong("wrong outcome", f"{r.rollout_id} came without the tokens of its session {r.session_id}")

    def _check_starts(
        self, r: RolloutResult, mine: list[str], sessions: Mapping[str, Session], causes: Mapping[str, str]
    ) -> None:
        """One session an attempt, no more attempts than allowed, and a cause for each that was followed by another."""
        self.counts["retries"] += max(0, len(mine) - 1)
        if len(mine) > r.attempt or r.attempt > MAX_ATTEMPTS:
            self._wrong("started too often", f"{r.rollout_id} had {len(mine)} sessions in {r.attempt} attempts: {mine}")
        for session_id in mine:
            if session_id == r.session_id:
                continue
            session = sessions[session_id]
            cause = causes.get(session_id) or ("the agent's end, not logged" if session.ended else None)
            if cause is None:
                self._wrong("started too often", f"{r.rollout_id} has a session after {session_id}, without a cause")
            self.counts[f"retried for {cause}"] += 1

    def _check_session(self, session_id: str, session: Session, evidence: Evidence) -> None:
        self.counts["starts"] += session.began
        again = session.began - 1
        if again > 0:
            self.counts["started again in their session after the container's end"] += again
        if again > session.ended:
            self._wrong("started too often", f"{session_id} of {session.rollout_id} ran {session.began} times")
        if session_id not in evidence.sealed:
            self._wrong("leaked", f"the gateway session {session_id} of {session.rollout_id} was not sealed")

    def _check_left(self, evidence: Evidence) -> None:
        for what in evidence.alive:
            self._wrong("leaked", f"{what} still runs")
        for what in evidence.kept:
            self._wrong("leaked", f"{what} is still to be stopped")
        for line in evidence.log:
            if line.get("event") in CRASHES:
                self._wrong("bugs logged", str(dict(line))[:1500])


CRASHES = {
    "impossible_news",
    "engine_crashed",
    "fleet_broke",
    "start_broke",
    "collect_broke",
    "stop_broke",
    "watch_broke",
}
"""What a dispatcher logs only of its own bugs."""


def _expects(batch: Posted, r: RolloutResult) -> bool:
    """Whether a rollout of this batch may end like this, without success."""
    failure = r.failure.type if r.failure else None
    if r.state is RolloutState.CANCELLED:
        surplus = batch.request.policy.extra > 0 and r.failure is not None and "surplus" in r.failure.message
        return batch.cancelled or surplus or batch.kind == "poison"
    return failure == EXPECTED.get(batch.kind) or (failure in MENDABLE and r.attempt == MAX_ATTEMPTS)


def _died_unseen(r: RolloutResult, sessions: Mapping[str, Session]) -> bool:
    """Its container was lost before a push of it had come through, or the dispatchers died faster than they could find
    it silent: then only the time limit tells."""
    timed_out = r.failure is not None and r.failure.type is FailureType.TIMED_OUT
    return timed_out and sessions[r.session_id or ""].ended > 0
