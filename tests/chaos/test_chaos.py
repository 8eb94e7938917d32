"""Chaos: nothing lost, nothing started twice without a cause, nothing doubled, nothing left behind.

SOAK_KILLS (20) is how often a dispatcher is killed, half with SQLite, half with two dispatchers on PostgreSQL.
SOAK_SEED (1) draws every fault and moment. `make soak` does it with many more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soak as recorded
from tests.chaos.soak import Plan, soak
from tests.kit.object_storage import Bucket
from tests.kit.postgres_server import PostgresServer
from tests.kit.services import Services

KILLS = int(os.environ.get("SOAK_KILLS", "20"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
FULL: dict[str, Any] = {"silences": 0.002, "trainers": 6} if KILLS > 20 else {}
"""More at once; and S3 silent now and then, which costs the dispatcher half a minute each time."""
HEADLINES = (
    "kills", "batches", "rollouts", "starts", "retries", "lost", "doubled", "started too often", "leaked",
    "wrong outcome", "bugs logged",
)  # fmt: skip
"""First in the record, where there were none too."""


async def _soaks(plan: Plan, services: Services, s3: Bucket, folder: Path, part: str) -> None:
    account = await soak(plan, services, s3, folder)
    for name, n in sorted(account.counts.items()):
        print(f"{n:7,}  {name}")
    assert not account.violations, "\n".join([f"seed {plan.seed}", *account.violations[:20]])
    assert account.counts["kills"] == plan.kills
    assert account.counts["succeeded"] >= plan.kills // 2, "the trainers got on with their work"
    if "SOAK_RECORD" in os.environ:
        counts = {name: account.counts[name] for name in HEADLINES}
        recorded.record("chaos", part, seed=plan.seed, counts=counts | dict(sorted(account.counts.items())))


@pytest.mark.timeout(7200 if KILLS > 20 else 600)
async def test_one_dispatcher_on_a_file(services: Services, s3: Bucket, tmp_path: Path) -> None:
    await _soaks(Plan(KILLS // 2, SEED, **FULL), services, s3, tmp_path / "world", "SQLite, one dispatcher")


@pytest.mark.timeout(7200 if KILLS > 20 else 600)
async def test_two_dispatchers_on_postgres(services: Services, s3: Bucket, tmp_path: Path) -> None:
    with PostgresServer() as server:
        plan = Plan(KILLS // 2, SEED, server, **FULL)
        await _soaks(plan, services, s3, tmp_path / "world", "PostgreSQL, two dispatchers")
