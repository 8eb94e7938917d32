"""One soak: a world with faults, trainers at work, dispatchers killed again and again, and the account at the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rollway_dispatcher.settings import DispatcherSettings
from tests.chaos.account import Account, Evidence
from tests.chaos.replicas import Replica
from tests.chaos.trainers import Trainer
from tests.chaos.world import World, made
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket
from tests.kit.postgres_server import PostgresServer
from tests.kit.services import Services

MOMENTS = ["submit", "open", "invoke", "report", "list", "s3 get", "seal", "stop"]
"""What may pass when a dispatcher is killed."""
MOMENT_PATIENCE_S = 3.0
POSTGRES_EVERY = 8
"""Kills between two failures of PostgreSQL."""
SETTLE_S = 180.0


@dataclass
class Plan:
    kills: int
    seed: int
    postgres: PostgresServer | None = None
    """State on it, and two dispatchers; None: in a file, and one."""
    silences: float = 0.0
    """Probability that S3 does not answer at all."""
    trainers: int = 3


async def soak(plan: Plan, services: Services, bucket: Bucket, folder: Path) -> Account:
    """Run it; its account has everything that went wrong in the dispatcher.

    Raises:
        TimeoutError, ExceptionGroup: it came to no end: a batch that stands still, a dispatcher that does not start.
    """
    async with made(services, bucket, folder, plan.seed, silences=plan.silences) as world:
        settings = _settings(plan, world)
        replicas = [Replica(services, world, settings) for _ in range(2 if plan.postgres else 1)]
        for replica in replicas:
            replica.spawn()
            await replica.ready()
        trainers = [Trainer(n, world, plan.seed) for n in range(plan.trainers)]
        killer = Killer(plan, world, replicas)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for trainer in trainers:
                group.create_task(trainer.run(stop))
            trouble = group.create_task(world.misbehave())
            await killer.run()
            trouble.cancel()
            stop.set()
        await world.calm()
        kept = await _settle(world)
        account = Account(killer.counts + world.faults())
        posted = [p for t in trainers for p in t.posted]
        account.check(posted, await _evidence(world, replicas, bucket, kept))
        return account


def _settings(plan: Plan, world: World) -> DispatcherSettings:
    shared = {"database_url": plan.postgres.new_database(), "lease_s": 2.0} if plan.postgres else {}
    return DispatcherSettings.model_validate({
        "public_url": world.front.url, "gateway_url": world.gateway_door.url, "s3_endpoint_url": world.s3.url,
        "s3_bucket": world.bucket.name, "region": world.bucket.region, "state_path": world.state_path,
        "allow_process_runtime": True, "poll_interval_s": 0.5, "heartbeat_interval_s": 0.5, "heartbeat_window_s": 3.0,
        "max_concurrent": 40, **shared,
    })  # fmt: skip


async def _settle(world: World) -> list[str]:
    """Wait until nothing runs and nothing is to be stopped; what still is, when that takes too long."""
    kept: list[str] = []

    async def nothing_left() -> bool:
        kept[:] = await _kept(world)
        return not kept and not await world.live_sessions()

    with suppress(TimeoutError):
        await eventually(nothing_left, "every session is stopped", SETTLE_S)
    return kept


async def _kept(world: World) -> list[str]:
    """What each dispatcher says is not confirmed to be gone."""
    found: list[str] = []
    for url in world.replicas:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            found += [f"{s['session_id']} ({s['state']})" for s in (await http.get("/v1/sessions")).json()]
    return found


async def _evidence(world: World, replicas: list[Replica], bucket: Bucket, kept: list[str]) -> Evidence:
    def objects() -> dict[str, Any]:
        return {key.rpartition("/")[2].removesuffix(".json"): bucket.get_json(key) for key in bucket.keys()}  # noqa: SIM118

    def log() -> list[Mapping[str, Any]]:
        return [line for replica in replicas for line in replica.said()]

    return Evidence(
        opened=world.gateway.sessions, sealed=world.gateway.sealed, diary=world.diary, killed=world.killed,
        objects=await asyncio.to_thread(objects), log=await asyncio.to_thread(log),
        alive=await world.live_sessions(), kept=kept,
    )  # fmt: skip


class Killer:
    """Kills dispatchers, one at a time and in turn, at moments drawn by seed, and starts them again."""

    def __init__(self, plan: Plan, world: World, replicas: list[Replica]) -> None:
        self._plan, self._world, self._replicas = plan, world, replicas
        self._dice = random.Random(f"{plan.seed} killer")
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        for n in range(self._plan.kills):
            if self._plan.postgres is not None and n % POSTGRES_EVERY == POSTGRES_EVERY - 1:
                await self._fail_postgres(self._plan.postgres)
            replica = self._replicas[n % len(self._replicas)]
            await self._kill(replica)
            await replica.reaped()
            self.counts["kills"] += 1
            if len(self._replicas) > 1 and self._dice.random() < 0.4:
                await asyncio.sleep(
                    self._dice.uniform(1.0, 4.0)
                )  # long enough for the other to take over, or not quite
            replica.spawn()
            if self._dice.random() < 0.15:
                await asyncio.sleep(self._dice.uniform(0.0, 2.0))
                replica.kill()
                await replica.reaped()
                self.counts["killed while starting"] += 1
                replica.spawn()
            await replica.ready()

    async def _kill(self, replica: Replica) -> None:
        dice = self._dice
        if dice.random() < 0.4:
            await asyncio.sleep(dice.uniform(0.0, 1.5))
            replica.kill()
            self.counts["killed after a random time"] += 1
            return
        kind, after = dice.choice(MOMENTS), dice.random() < 0.5
        sprung = asyncio.Event()

        def spring() -> None:
            replica.kill()
            sprung.set()

        wire = self._world.tripwire
        wire.spring, wire.armed = spring, (kind, after)
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_PATIENCE_S):
                await sprung.wait()
        wire.armed = None
        if not sprung.is_set():
            replica.kill()
        self.counts[f"killed at {kind}" if sprung.is_set() else "killed after a random time"] += 1

    async def _fail_postgres(self, server: PostgresServer) -> None:
        self.counts["PostgreSQL failed"] += 1
        crash = self._dice.random() < 0.5
        await asyncio.to_thread(server.restart if crash else server.stop)
        if not crash:
            await asyncio.sleep(self._dice.uniform(0.0, 3.0))
            await asyncio.to_thread(server.start)
