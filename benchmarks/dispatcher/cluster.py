"""A cluster with a clock of its own, for the dispatcher's real scheduler: the scheduler is pure, so it cannot tell.

What is modelled: a runtime whose starts and stops share one rate, cold starts, agents whose work takes a drawn time and
that may die on the way, and engines that serve so many rollouts at full speed and share it among more (processor
sharing).
What is not: S3 and the gateway, which answer after a fixed time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

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
    Stop,
    Stopped,
)
from rollway_wire.batch import Capture, Group, Limits, Policy
from rollway_wire.failures import Failure, FailureType

COLLECT_S = 0.1
PUSH_S = 0.02
OK = Outcome(None, [1.0], {}, b"")


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
    seed: int = 1


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
    session_hours: float = 0.0
    wasted_hours: float = 0.0
    """Of sessions that brought no result that counts."""
    steps: int = 0
    order: list[str] = field(default_factory=list)
    """Rollout ids in the order of admission."""


class Simulation:
    """One batch on one cluster under one policy."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self._c, self._policy = cluster, policy
        self._now = 0.0
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
        order = Order.model_validate({
            "batch_id": "b", "experiment_id": "e", "runtime": {"kind": "process", "command": ["agent"]},
            "model_id": "", "sampling_params": {}, "capture": Capture(), "rollout": {}, "require_rewards": True,
            "limits": Limits(rollout_timeout_s=self._c.longest_s), "policy": self._policy, "s3_bucket": "s",
        })  # fmt: skip
        groups = [Group(group_id=f"g{i}", payload={}, n=self._c.n) for i in range(self._c.groups)]
        batch = fresh_batch(order, groups, 0.0)
        batch.room = type(batch.room)("runtime", max(1, int(self._c.tps)), None)
        self._news.append(Arrived(batch))
        self._step()
        while self._core.batches:
            if self._events and self._events[0][0] <= self._wake:
                self._now, _, act = heapq.heappop(self._events)
                act()
            else:
                self._now = self._wake
            self._step()
        return self.out

    # -- time

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _tell(self, when: float, *news: News) -> None:
        self._at(when, lambda: self._news.extend(news))

    def _step(self) -> None:
        for item in self._news:
            self._core.take(item, self._now)
        self._news.clear()
        step = self._core.step(self._now)
        self.out.steps += 1
        for published in step.published:
            self._publish(published)
        for effect in step.effects:
            if isinstance(effect, Start):
                self._start(effect)
            elif isinstance(effect, Collect):
                outcome = OK if effect.suspicion is None else Outcome(effect.suspicion)
                self._tell(self._now + COLLECT_S, Collected(effect.session_id, outcome))
            elif isinstance(effect, Stop):
                self._stop(effect.session_id)
        self._press()
        self._wake = max(self._core.wake_at(self._now), self._now + 1e-3)

    def _call(self) -> float:
        """When the runtime takes one more call."""
        self._slot = max(self._slot, self._now) + 1 / self._c.tps
        return self._slot

    # -- what the cluster does

    def _start(self, e: Start) -> None:
        self.out.sessions += 1
        self.out.order.append(e.rollout_id)
        draw = self._draw(e.rollout_id)
        up = self._call() + self._c.cold_start_s * draw.lognormvariate(0, 0.4)
        self._began[e.session_id] = self._now
        self._at(up, lambda: self._begin(e, draw))

    def _draw(self, rollout_id: str) -> random.Random:
        """The same for the same attempt at the same rollout, whatever the policy."""
        attempt = self._attempts[rollout_id] = self._attempts.get(rollout_id, 0) + 1
        return random.Random(f"{self._c.seed} {rollout_id} {attempt}")

    def _begin(self, e: Start, draw: random.Random) -> None:
        if e.session_id not in self._core.sessions:
            return  # stopped meanwhile
        self._news.append(Happened(e.session_id, Trigger.INVOKED))
        demand = min(self._c.longest_s, self._c.work_s * draw.lognormvariate(0, self._c.sigma))
        fate = draw.random()
        if fate < self._c.dies:
            died = Failure(type=FailureType.AGENT_DIED, message="died")
            self._tell(
                self._now + draw.random() * demand + self._c.window_s,
                Happened(e.session_id, Trigger.SUSPECTED, died),
            )
        elif fate > self._c.dies + self._c.hangs:
            self._serve()
            number = next(self._order)
            self._alive[e.session_id] = number
            heapq.heappush(self._agents, (self._work + demand, number, e.session_id))
            self._next_end()

    def _stop(self, session_id: str) -> None:
        self._serve()
        self._alive.pop(session_id, None)
        self._next_end()
        hours = (self._now - self._began.pop(session_id, self._now)) / 3600
        self.out.session_hours += hours
        if session_id not in self._useful:
            self.out.wasted_hours += hours
        self._tell(self._call(), Stopped(session_id))

    def _serve(self) -> None:
        """Bring the served work up to now."""
        n = len(self._alive)
        speed = 1.0 if n <= self._c.engine_slots else self._c.engine_slots / n
        self._work += (self._now - self._work_at) * speed
        self._work_at = self._now

    def _next_end(self) -> None:
        while self._agents and self._alive.get(self._agents[0][2]) != self._agents[0][1]:
            heapq.heappop(self._agents)
        if not self._agents:
            return
        n = len(self._alive)
        speed = 1.0 if n <= self._c.engine_slots else self._c.engine_slots / n
        end, number, session_id = self._agents[0]
        self._at(self._now + max(0.0, end - self._work) / speed, lambda: self._end(number, session_id))

    def _end(self, number: int, session_id: str) -> None:
        if self._alive.get(session_id) != number:
            return
        self._serve()
        if self._agents[0][0] > self._work + 1e-6:  # it was slowed down meanwhile
            self._next_end()
            return
        del self._alive[session_id]
        self._next_end()
        self._tell(self._now + PUSH_S, Happened(session_id, Trigger.NOTICED))

    def _press(self) -> None:
        if self._c.holds_at is None:
            return
        pressed = len(self._alive) > self._c.holds_at * self._c.engine_slots
        if pressed != self._pressed:
            self._pressed = pressed
            self._tell(self._now + 1.0, Pressure("default", pressed))

    def _publish(self, p: Published) -> None:
        self.out.all_s = self._now
        if p.outcome is None or p.outcome.failure is not None:
            return
        self._useful.add(p.rollout.session_id or "")
        done = self._succeeded[p.rollout.group] = self._succeeded.get(p.rollout.group, 0) + 1
        if done == self._c.n:
            self.out.decided += 1
            if self.out.decided * 2 >= self._c.groups and not self.out.half_s:
                self.out.half_s = self._now
