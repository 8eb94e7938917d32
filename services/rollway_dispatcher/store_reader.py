"""What the API shows, read from the database: what is on disk and nothing else."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from rollway_dispatcher import schema
from rollway_dispatcher.database import Database
from rollway_dispatcher.order import Order, room_of
from rollway_dispatcher.rollout import Rollout
from rollway_wire.batch import BatchState, BatchStatus, RolloutState, RolloutView, SessionView, Webhook, WebhookStatus
from rollway_wire.failures import Failure
from rollway_wire.problems import NotFound, Unprocessable

ALIVE = (RolloutState.STARTING, RolloutState.RUNNING, RolloutState.COLLECTING)


@dataclass(frozen=True, slots=True)
class StoredResult:
    seq: int
    document: bytes
    """`RolloutResult` as JSON."""
    trajectory: bytes | None
    """Packed tree."""


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """How far a batch's webhook is."""

    batch_id: str
    webhook: Webhook
    delivered: int
    """Results told: the cursor."""
    attempt: int
    """Failed tries of the next call."""
    next_at: float
    failing_since: float | None
    last_error: str | None
    state: Literal["open", "done", "given_up"]


class StoreReader:
    """Methods raise `StoreTrouble` when the database is in the way."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def _counts(self, batch_id: str) -> dict[RolloutState, int]:
        rows = await self._db.every(
            "SELECT state, count(*) FROM rollouts WHERE batch_id = ? GROUP BY state", (batch_id,)
        )
        return {RolloutState(state): n for state, n in rows}

    async def status(self, batch_id: str) -> BatchStatus:
        """Raises NotFound."""
        row = await self._db.one(
            "SELECT document, total, created_at, cancelled, contract_error, finished_at FROM batches "
            "WHERE batch_id = ?",
            (batch_id,),
        )
        if row is None:
            raise NotFound(f"no batch {batch_id!r:.80}: it never was, or it finished and its results' time is over")
        failures = await self._db.every(
            f"SELECT {self._db.failure_type}, count(*) FROM rollouts WHERE batch_id = ? AND state = ? GROUP BY 1",
            (batch_id, RolloutState.FAILED.value),
        )
        state = BatchState.FINISHED if row[5] is not None else BatchState.CANCELLING if row[3] else BatchState.RUNNING
        return BatchStatus(
            batch_id=batch_id,
            experiment_id=Order.model_validate_json(row[0]).experiment_id,
            state=state,
            created_at=row[2],
            finished_at=row[5],
            total=row[1],
            counts=await self._counts(batch_id),
            failures={str(kind): n for kind, n in failures},
            contract_error=row[4],
            webhook=await self._webhook_status(batch_id),
        )

    async def _webhook_status(self, batch_id: str) -> WebhookStatus | None:
        row = await self.webhook(batch_id)
        if row is None:
            return None
        return WebhookStatus(state=row.state, delivered=row.delivered, attempt=row.attempt, last_error=row.last_error)

    async def webhook(self, batch_id: str) -> WebhookRow | None:
        """None: it has none."""
        row = await self._db.one(
            "SELECT document, delivered, attempt, next_at, failing_since, last_error, state FROM webhooks "
            "WHERE batch_id = ?",
            (batch_id,),
        )
        return None if row is None else WebhookRow(batch_id, Webhook.model_validate_json(row[0]), *row[1:])

    async def open_webhooks(self) -> list[str]:
        """Batches whose webhook has something to tell, or may have."""
        rows = await self._db.every("SELECT batch_id FROM webhooks WHERE state = 'open'")
        return [str(row[0]) for row in rows]

    async def batch_ids(self, limit: int, before: int | None = None) -> list[tuple[int, str]]:
        """(place in the order of arrival, batch id), newest first, of those that arrived before place ``before``."""
        older = "" if before is None else "WHERE position < ? "
        query = f"SELECT position, batch_id FROM batches {older}ORDER BY position DESC LIMIT ?"
        rows = await self._db.every(query, (limit,) if before is None else (before, limit))
        return [(int(position), str(batch_id)) for position, batch_id in rows]

    async def running_batches(self) -> list[str]:
        """Those not finished, in order of arrival."""
        rows = await self._db.every("SELECT batch_id FROM batches WHERE finished_at IS NULL ORDER BY position")
        return [str(row[0]) for row in rows]

    async def views(self, batch_id: str, first: int, limit: int) -> list[RolloutView]:
        """The batch's rollouts in order, from the ``first``-th; empty for an unknown batch."""
        query = f"{schema.SELECT_ROLLOUT} WHERE batch_id = ? AND ordinal >= ? ORDER BY ordinal LIMIT ?"
        rows = await self._db.every(query, (batch_id, first, limit))
        return [schema.view_of(schema.rollout_of(row)) for row in rows]

    async def rollout(self, batch_id: str, group_id: str, index: int) -> Rollout:
        """Raises NotFound."""
        query = f"{schema.SELECT_ROLLOUT} WHERE batch_id = ? AND group_id = ? AND idx = ?"
        row = await self._db.one(query, (batch_id, group_id, index))
        if row is None:
            raise NotFound(f"no rollout {batch_id}/{group_id}/{index}"[:200])
        return schema.rollout_of(row)

    async def failures(self, batch_id: str) -> list[tuple[str, Failure]]:
        """(group id, failure) of each finished rollout that has one, in order."""
        ended = (RolloutState.FAILED.value, RolloutState.CANCELLED.value)
        query = "SELECT group_id, failure FROM rollouts WHERE batch_id = ? AND state IN (?, ?) ORDER BY ordinal"
        rows = await self._db.every(query, (batch_id, *ended))
        return [(str(group_id), Failure.model_validate_json(raw)) for group_id, raw in rows if raw is not None]

    async def sessions(self) -> list[SessionView]:
        """Every session that a runtime was asked for and has not confirmed to be gone."""
        marks = ", ".join("?" * len(ALIVE))
        alive = await self._db.every(
            "SELECT session_id, r.batch_id, group_id, idx, state, admitted_at FROM rollouts r "
            f"JOIN batches b ON b.batch_id = r.batch_id WHERE b.finished_at IS NULL AND state IN ({marks})",
            tuple(s.value for s in ALIVE),
        )
        stopping = await self._db.every("SELECT session_id, batch_id, since FROM stops")
        runtimes = {batch_id: await self._runtime(batch_id) for batch_id in {row[1] for row in (*alive, *stopping)}}
        views = [
            SessionView(
                session_id=session_id, state=state, since=since, runtime=runtimes[batch_id], batch_id=batch_id,
                group_id=group_id, index=index,
            )
            for session_id, batch_id, group_id, index, state, since in alive
        ] + [
            SessionView(session_id=s, state="stopping", since=since, runtime=runtimes[b], batch_id=b)
            for s, b, since in stopping
        ]  # fmt: skip
        return sorted(views, key=lambda v: (v.since, v.session_id))

    async def _runtime(self, batch_id: str) -> str:
        row = await self._db.one("SELECT document FROM batches WHERE batch_id = ?", (batch_id,))
        assert row is not None
        return room_of(Order.model_validate_json(row[0]).runtime).key

    async def results(
        self, batch_id: str, cursor: int, limit: int, max_bytes: int, *, trajectories: bool = True
    ) -> tuple[list[StoredResult], int, int]:
        """(results after ``cursor``; how many there are in all; how many there will be).

        At least one result if there is any, then as many as fit ``limit`` and ``max_bytes``; without their trajectories
        where these are not wanted.

        Raises:
            NotFound: no such batch.
            Unprocessable: ``cursor`` is beyond the last result.
        """
        row = await self._db.one(
            "SELECT total, (SELECT max(seq) FROM results r WHERE r.batch_id = b.batch_id) FROM batches b "
            "WHERE batch_id = ?",
            (batch_id,),
        )
        if row is None:
            raise NotFound(f"no batch {batch_id!r:.80}: it never was, or it finished and its results' time is over")
        total, there = row[0], row[1] or 0  # they are numbered without gaps
        if cursor > there:
            raise Unprocessable(f"cursor {cursor} is beyond the last result {there}: pass a cursor from this batch")
        found: list[StoredResult] = []
        size = 0
        tokens = "trajectory" if trajectories else "NULL"
        query = f"SELECT seq, document, {tokens} FROM results WHERE batch_id = ? AND seq > ? ORDER BY seq LIMIT ?"
        async with aclosing(self._db.rows(query, (batch_id, cursor, limit))) as rows:
            async for seq, document, trajectory in rows:
                size += len(document) + len(trajectory or b"")
                if found and size > max_bytes:
                    break
                found.append(StoredResult(seq, document, trajectory))
        return found, there, total
