"""In-process stand-ins that follow a script: dispatcher, gateway gate and verl's queue, all writing one diary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollway_driver.verl.batches import Order, Partition, Status
from rollway_driver.verl.prompts import Prompt
from rollway_driver.verl.rows import Session
from rollway_wire.batch import BatchRequest, BatchState, BatchStatus, RolloutResult
from rollway_wire.gateway import PoolState
from rollway_wire.tokens import Trajectory

Diary = list[tuple[Any, ...]]
Script = Callable[[BatchRequest], AsyncIterator[tuple[RolloutResult, Trajectory | None]]]


@dataclass
class ScriptedDispatcher:
    diary: Diary
    script: Script
    submit_error: Exception | None = None
    cancel_error: Exception | None = None
    requests: list[BatchRequest] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def submit(self, request: BatchRequest, *, idempotency_key: str | None = None) -> BatchStatus:
        self.keys.append(idempotency_key)
        if self.submit_error:
            raise self.submit_error
        self.requests.append(request)
        self.diary.append(("submit", request.capture and request.capture.pool))
        return self._status(BatchState.RUNNING)

    def stream(
        self, batch_id: str, *, timeout: float | None = None
    ) -> AsyncIterator[tuple[RolloutResult, Trajectory | None]]:
        return self.script(self.requests[int(batch_id[1:])])

    async def cancel(self, batch_id: str) -> BatchStatus:
        self.diary.append(("cancel", batch_id))
        if self.cancel_error:
            raise self.cancel_error
        return self._status(BatchState.CANCELLING)

    def _status(self, state: BatchState) -> BatchStatus:
        return BatchStatus(
            batch_id=f"b{len(self.requests) - 1}", experiment_id="e", state=state, created_at=0, finished_at=None,
            total=1, counts={}, failures={},
        )  # fmt: skip


@dataclass
class ScriptedGate:
    diary: Diary
    open_error: Exception | None = None
    fence_error: Exception | None = None

    async def open_pool(self, pool: str, policy_version: int | None = None) -> list[PoolState]:
        self.diary.append(("open", pool, policy_version))
        if self.open_error:
            raise self.open_error
        return [self._state(pool)]

    async def fence_pool(self, pool: str, *, drain_timeout_s: float, abort: bool) -> list[PoolState]:
        self.diary.append(("fence", pool))
        if self.fence_error:
            raise self.fence_error
        return [self._state(pool)]

    @staticmethod
    def _state(pool: str) -> PoolState:
        return PoolState(pool=pool, gate="open", policy_version=0, in_flight=0, sessions=0, workers=[])


@dataclass
class RecordingSink:
    diary: Diary
    rows: dict[str, list[Session]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    put_error: Exception | None = None

    async def running(self, partition: Partition, uids: Sequence[str]) -> None:
        self.diary.append(("running", partition, *sorted(uids)))

    async def put(self, order: Order, prompt: Prompt, sessions: Sequence[Session]) -> None:
        if self.put_error:
            raise self.put_error
        self.diary.append(("rows", prompt.uid))
        self.rows[prompt.uid] = list(sessions)

    async def end(self, partition: Partition, uid: str, status: Status) -> None:
        assert uid not in self.tags, f"{uid} was tagged twice"
        self.diary.append(("tag", partition, uid, status))
        self.tags[uid] = status
