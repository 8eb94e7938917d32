"""Trainers: each posts a batch with the real client, reads its results to the end, and posts the next one."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rollway_driver.client import AsyncDispatcherClient, FinishedRollout, RetryPolicy
from rollway_wire.batch import BatchRequest
from tests.chaos.world import AGENT, AGENT_ENV, ARN, TPS, World

KINDS = {"ok": 0.78, "raise": 0.08, "hang": 0.07, "poison": 0.07}
"""What a batch's agents do, and how often."""
MAX_ATTEMPTS = 4
HANG_LIMIT_S, LIMIT_S = 5.0, 60.0
"""Of a healthy agent well over the longest that a silent S3 holds its result."""
BATCH_DEADLINE_S = 300.0


@dataclass
class Posted:
    """A batch as its trainer saw it."""

    request: BatchRequest
    kind: str
    batch_id: str = ""
    cancelled: bool = False
    results: list[FinishedRollout] = field(default_factory=list)
    again: list[FinishedRollout] = field(default_factory=list)
    """The same, read once more from the beginning."""

    def expected(self) -> set[str]:
        """The rollouts it must give results of."""
        extra = self.request.policy.extra
        return {f"{self.batch_id}/{g.group_id}/{i}" for g in self.request.groups for i in range(g.n + extra)}


class Trainer:
    def __init__(self, number: int, world: World, seed: int) -> None:
        self._number, self._world = number, world
        self._dice = random.Random(f"{seed} trainer {number}")
        self.posted: list[Posted] = []
        self.seen: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event) -> None:
        policy = RetryPolicy(deadline_s=120.0, max_wait_s=1.0)
        async with AsyncDispatcherClient(self._world.front.url, retry=policy) as client:
            while not stop.is_set():
                await self._train(client)

    async def _train(self, client: AsyncDispatcherClient) -> None:
        posted = self._drawn()
        self.posted.append(posted)
        key = f"trainer-{self._number}-{len(self.posted)}"
        posted.batch_id = (await client.submit(posted.request, idempotency_key=key)).batch_id
        again = await client.submit(posted.request, idempotency_key=key)
        assert again.batch_id == posted.batch_id, "one key, two batches"
        async with asyncio.timeout(BATCH_DEADLINE_S), asyncio.TaskGroup() as group:
            if posted.cancelled:
                group.create_task(self._cancel(client, posted.batch_id))
            posted.results = [r async for r in client.stream(posted.batch_id, limit=5, wait_s=5)]
        posted.again = [r async for r in client.stream(posted.batch_id)]

    async def _cancel(self, client: AsyncDispatcherClient, batch_id: str) -> None:
        await asyncio.sleep(self._dice.uniform(0.1, 2.0))
        await client.cancel(batch_id)

    def _drawn(self) -> Posted:
        dice = self._dice
        kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
        groups = [
            {"group_id": f"g{i}", "n": dice.choice([1, 2, 4]), "payload": self._payload(kind)}
            for i in range(dice.randint(1, 4))
        ]
        policy: dict[str, Any] = {"quarantine_after": 4 if kind == "poison" else None}
        if kind == "ok" and dice.random() < 0.2:
            policy |= {"extra": 1, "extra_start": dice.choice(["with_group", "straggler"])}
        limits = {"max_attempts": MAX_ATTEMPTS, "rollout_timeout_s": HANG_LIMIT_S if kind == "hang" else LIMIT_S}
        request = BatchRequest.model_validate({
            "experiment_id": f"trainer-{self._number}", "groups": groups, "runtime": self._runtime(), "limits": limits,
            "policy": policy,
        })  # fmt: skip
        return Posted(request, kind, cancelled=dice.random() < 0.1)

    def _payload(self, kind: str) -> dict[str, Any]:
        dice = self._dice
        pushes = kind == "poison" or dice.random() < 0.7
        return {
            "kind": kind, "diary": str(self._world.diary), "seed": dice.randrange(10**6), "dies": 0.1 if pushes else 0,
            "sleep_s": round(dice.uniform(0.05, 3.0), 3), "pushes": pushes,
            "reward": round(dice.random(), 6),
        }  # fmt: skip

    def _runtime(self) -> dict[str, Any]:
        if self._number % 3 == 2:
            return {"kind": "process", "command": [sys.executable, *AGENT], "env": AGENT_ENV}
        endpoint = self._world.runtime.url
        return {"kind": "agentcore", "agent_runtime_arn": ARN, "endpoint_url": endpoint, "tps_limit": TPS}
