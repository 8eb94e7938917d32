"""A batch on a simulated cluster, under the dispatcher's real scheduler: it is pure, so it cannot tell.

What is modelled: a runtime whose starts and stops share one rate, cold starts, agents whose work takes a drawn time and
that may die on the way, and engines that serve so many rollouts at full speed and share it among more (processor
sharing). Where a quota is given, a runtime that refuses starts over it.
What is not: S3 and the gateway, which answer after a fixed time; the rate of calls, which the dispatcher lowers when it
is refused; refused stops. `tests/dispatcher/test_simulated_and_real.py` holds both to the same script.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.dispatcher.cluster import Cluster, Drawn, Fate
from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.order import Order
from rollway_dispatcher.rollout import fresh_batch
from rollway_dispatcher.schedule import Patience, Scheduler
from rollway_dispatcher.step import (
    Arrived,
    Collect,
    Collected,
    Happened,
    News,
    Outcome,
    Pressure,
    Published,
    Start,
    StartFailed,
    Stop,
    Stopped,
)
from rollway_wire.batch import Capture, Group, Limits, Policy, RolloutState
from rollway_wire.failures import Failure, FailureType

COLLECT_S = 0.1
PUSH_S = 0.02
OK = Outcome(None, [1.0], {}, b"")
RAISED = Failure(type=FailureType.AGENT_ERROR, message="the agent raised")
REFUSED = Failure(type=FailureType.THROTTLED, message="over the quota")


@dataclass(kw_only=True)
class Outcomes:
    """What a policy got and what it paid."""

    decided: int = 0
    """Groups with all the results they want."""
    half_s: float = 0.0
    """When half of the groups were decided."""
    all_s: float = 0.0
    """When the last result of the batch was there."""
    sessions: int = 0
    """Starts that the runtime took."""
    refused: int = 0
    """Starts that it did not."""
    session_hours: float = 0.0
    wasted_hours: float = 0.0
    """Of sessions that brought no result that counts."""
    steps: int = 0
    order: list[str] = field(default_factory=list)
    """Rollout ids in the order of admission."""
    results: list[tuple[str, str, str | None, int]] = field(default_factory=list)
    """Rollout id, state, type of failure and attempt, in the order of finishing."""


class Simulation:
    """One batch on one cluster under one policy."""

    def __init__(
        self, cluster: Cluster, policy: Policy, fates: Callable[[str, int], Fate] | None = None,
        watch: Callable[[str, str], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """
        Args:
            fates: by rollout id and attempt; None: `Drawn`.
            watch: told of each end ("ok", "raise", "die" and the rollout's id) and of the engines ("full" or "free"
                and the pool) before the scheduler is.
        """
        self._c, self._policy = cluster, policy
        self._fates, self._watch = fates or Drawn(cluster), watch
        self._raised: set[str] = set()
        self._tokens, self._tokens_at = float(cluster.quota_burst), 0.0
        self.now = 0.0
        """Seconds since the batch arrived."""
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._news: list[News] = []
        ids = (f"session-{i:030}" for i in itertools.count())
        patience = Patience(cluster.window_s, 3600.0)
        self._core = Scheduler(Budgets(cluster.max_concurrent), patience, lambda: next(ids))
        self._slot = 0.0
        """When the runtime takes its next call."""
        self._began: dict[str, float] = {}
        self._useful: set[str] = set()
        self._work, self._work_at = 0.0, 0.0
        """Work that each running agent has been served since time 0, and when that was reckoned."""
        self._agents: list[tuple[float, int, str]] = []
        """Running agents by the served work at which they end."""
        self._alive: dict[str, int] = {}
        self._wake = 0.0
        self._pressed = False
        self._attempts: dict[str, int] = {}
        self.out = Outcomes()
        self._succeeded: dict[int, int] = {}

    def run(self) -> Outcomes:
        limits = Limits(rollout_timeout_s=self._c.longest_s, max_attempts=self._c.max_attempts)
        order = Order.model_validate({
            "batch_id": "b", "experiment_id": "e", "runtime": {"kind": "process", "command": ["agent"]},
            "model_id": "", "sampling_params": {}, "capture": Capture(), "rollout": {}, "require_rewards": True,
            "limits": limits, "policy": self._policy, "s3_bucket": "s",
        })  # fmt: skip
        groups = [Group(group_id=f"g{i}", payload={}, n=self._c.n) for i in range(self._c.groups)]
        batch = fresh_batch(order, groups, 0.0)
        batch.room = type(batch.room)("runtime", max(1, int(self._c.tps)), None)
        self._news.append(Arrived(batch))
        self._step()
        while self._core.batches:
            if self._events and self._events[0][0] <= self._wake:
                self.now, _, act = heapq.heappop(self._events)
                act()
            else:
                self.now = self._wake
            self._step()
        return self.out

    def running(self) -> set[str]:
        """Rollout ids."""
        return {r.rollout_id for r in self._core.sessions.values() if r.state is RolloutState.RUNNING}

    # -- time

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _tell(self, when: float, *news: News) -> None:
        self._at(when, lambda: self._news.extend(news))

    def _step(self) -> None:
        for item in self._news:
            self._core.take(item, self.now)
        self._news.clear()
        step = self._core.step(self.now)
        self.out.steps += 1
        for published in step.published:
            self._publish(published)
        for effect in step.effects:
            if isinstance(effect, Start):
                self._start(effect)
            elif isinstance(effect, Collect):
                failure = RAISED if effect.session_id in self._raised else effect.suspicion
                outcome = OK if failure is None else Outcome(failure)
                self._tell(self.now + COLLECT_S, Collected(effect.session_id, outcome))
            elif isinstance(effect, Stop):
                self._stop(effect.session_id)
        self._press()
        self._wake = max(self._core.wake_at(self.now), self.now + 1e-3)

    def _call(self) -> float:
        """When the runtime takes one more call."""
        self._slot = max(self._slot, self.now) + 1 / self._c.tps
        return self._slot

    # -- what the cluster does

    def _start(self, e: Start) -> None:
        self.out.order.append(e.rollout_id)
        self._began[e.session_id] = self.now
        self._at(self._call(), lambda: self._arrive(e))

    def _arrive(self, e: Start) -> None:
        if not self._within_quota():
            self.out.refused += 1
            del self._began[e.session_id]
            self._news.append(StartFailed(e.session_id, REFUSED))
            return
        self.out.sessions += 1
        attempt = self._attempts[e.rollout_id] = self._attempts.get(e.rollout_id, 0) + 1
        fate = self._fates(e.rollout_id, attempt)
        self._at(self.now + fate.cold_start_s, lambda: self._begin(e, fate))

    def _within_quota(self) -> bool:
        """A token bucket, as quotas of calls are."""
        if self._c.quota_tps is None:
            return True
        self._tokens = min(self._c.quota_burst, self._tokens + (self.now - self._tokens_at) * self._c.quota_tps)
        self._tokens_at = self.now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _begin(self, e: Start, fate: Fate) -> None:
        if e.session_id not in self._core.sessions:
            return  # stopped meanwhile
        self._news.append(Happened(e.session_id, Trigger.INVOKED))
        if fate.end == "die":
            self._at(self.now + fate.dies_after_s + self._c.window_s, lambda: self._die(e))
        elif fate.end != "hang":
            if fate.end == "raise":
                self._raised.add(e.session_id)
            self._serve()
            number = next(self._order)
            self._alive[e.session_id] = number
            heapq.heappush(self._agents, (self._work + fate.work_s, number, e.session_id))
            self._next_end()

    def _die(self, e: Start) -> None:
        if e.session_id in self._core.sessions:
            self._watch("die", e.rollout_id)
        died = Failure(type=FailureType.AGENT_DIED, message="died")
        self._news.append(Happened(e.session_id, Trigger.SUSPECTED, died))

    def _stop(self, session_id: str) -> None:
        self._serve()
        self._alive.pop(session_id, None)
        self._next_end()
        hours = (self.now - self._began.pop(session_id, self.now)) / 3600
        self.out.session_hours += hours
        if session_id not in self._useful:
            self.out.wasted_hours += hours
        self._tell(self._call(), Stopped(session_id))

    def _serve(self) -> None:
        """Bring the served work up to now."""
        n = len(self._alive)
        speed = 1.0 if n <= self._c.engine_slots else self._c.engine_slots / n
        self._work += (self.now - self._work_at) * speed
        self._work_at = self.now

    def _next_end(self) -> None:
        while self._agents and self._alive.get(self._agents[0][2]) != self._agents[0][1]:
            heapq.heappop(self._agents)
        if not self._agents:
            return
        n = len(self._alive)
        speed = 1.0 if n <= self._c.engine_slots else self._c.engine_slots / n
        end, number, session_id = self._agents[0]
        self._at(self.now + max(0.0, end - self._work) / speed, lambda: self._end(number, session_id))

    def _end(self, number: int, session_id: str) -> None:
        if self._alive.get(session_id) != number:
            return
        self._serve()
        if self._agents[0][0] > self._work + 1e-6:  # it was slowed down meanwhile
            self._next_end()
            return
        del self._alive[session_id]
        self._next_end()
        self._at(self.now + PUSH_S, lambda: self._done(session_id))

    def _done(self, session_id: str) -> None:
        if (r := self._core.sessions.get(session_id)) is not None:
            self._watch("raise" if session_id in self._raised else "ok", r.rollout_id)
        self._news.append(Happened(session_id, Trigger.NOTICED))

    def _press(self) -> None:
        if self._c.holds_at is None:
            return
        pressed = len(self._alive) > self._c.holds_at * self._c.engine_slots
        if pressed != self._pressed:
            self._pressed = pressed
            self._at(self.now + 1.0, lambda: self._look(pressed=pressed))

    def _look(self, *, pressed: bool) -> None:
        self._watch("full" if pressed else "free", "default")
        self._news.append(Pressure("default", pressed))

    def _publish(self, p: Published) -> None:
        self.out.all_s = self.now
        r = p.rollout
        self.out.results.append((r.rollout_id, r.state.value, r.failure.type.value if r.failure else None, r.attempt))
        if p.outcome is None or p.outcome.failure is not None:
            return
        self._useful.add(p.rollout.session_id or "")
        done = self._succeeded[p.rollout.group] = self._succeeded.get(p.rollout.group, 0) + 1
        if done == self._c.n:
            self.out.decided += 1
            if self.out.decided * 2 >= self._c.groups and not self.out.half_s:
                self.out.half_s = self.now
