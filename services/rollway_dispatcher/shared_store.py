"""The store on PostgreSQL, shared by several dispatchers: each batch is worked on by one of them, its owner.

An owner holds a lease, kept in the database and timed by the database's clock alone. Every write of a step locks the
leases of the batches it changes and fails when one is no longer its own (`LeaseLost`), so a dispatcher that was stopped
for a while, or cut off, can write nothing of a batch that another has taken over; and since nothing is done that is not
written, it starts nothing of it either. What it had under way is repeated by the new owner, under the same session ids.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Container, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from rollway_dispatcher import schema
from rollway_dispatcher.database import Database, LeaseLost, Writing
from rollway_dispatcher.postgres_database import PostgresDatabase, told
from rollway_dispatcher.rollout import Batch
from rollway_dispatcher.state_file import StateUnusable
from rollway_dispatcher.step import Step, Stop
from rollway_dispatcher.store import Store
from rollway_dispatcher.store_reader import WebhookRow

CHANNEL = "rollway_dispatcher"
NOW = "extract(epoch FROM clock_timestamp())"
NOTICE_BYTES = 7000
"""PostgreSQL takes notifications of up to 8000."""

UNFINISHED = "(finished_at IS NULL OR batch_id IN (SELECT batch_id FROM stops))"
"""Of a batch: there are rollouts or stops left."""
LEFT = f"({UNFINISHED} OR batch_id IN (SELECT batch_id FROM webhooks WHERE state = 'open'))"
"""Of a batch: there is something left to do."""

TABLES = """
CREATE TABLE IF NOT EXISTS leases (
  batch_id TEXT PRIMARY KEY, owner TEXT NOT NULL, until DOUBLE PRECISION NOT NULL
);
CREATE TABLE IF NOT EXISTS dispatchers (owner TEXT PRIMARY KEY, step BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS rates (arn TEXT PRIMARY KEY, next_at DOUBLE PRECISION NOT NULL);
"""


class SharedStore(Store):
    """One dispatcher's view; ``owner`` names it, anew at each start."""

    def __init__(self, db: Database, secret: bytes, lease_s: float, *, one_address: bool = False) -> None:
        """``one_address``: agents push to all dispatchers under one."""
        super().__init__(db, secret)
        self.owner = uuid.uuid4().hex
        self._lease_s, self._one_address = lease_s, one_address
        self._last: Step | None = None
        self._number = 0

    # -- leases

    async def _load(self, batch_id: str) -> tuple[Batch, list[Stop]]:
        batch, stops = await super()._load(batch_id)
        if not self._one_address:  # pushes may go where nobody is any more: silence means nothing until one is heard
            for r in batch.rollouts.values():
                r.reports = False
        return batch, stops

    async def keep(self) -> None:
        """Renew the leases held. Taking a batch over is for others once that has failed for a lease's length."""
        async with self._db.writing() as db:
            await db.execute(
                f"UPDATE leases SET until = {NOW} + ? WHERE owner = ? AND batch_id IN "
                f"(SELECT batch_id FROM batches WHERE {LEFT})",
                (self._lease_s, self.owner),
            )

    async def release(self) -> None:
        """Let others take over at once."""
        async with self._db.writing() as db:
            await db.execute("UPDATE leases SET until = 0 WHERE owner = ?", (self.owner,))

    async def unfinished(self, known: Container[str] = ()) -> list[tuple[Batch, list[Stop]]]:
        """Take over every batch whose lease is over and that has something left to do; those of them that have rollouts
        or stops. Webhooks alone are left to `open_webhooks`. Also those leased to this dispatcher that it does not
        know: it was not heard that they were made or taken, or they could not be read."""
        async with self._db.writing() as db:
            found = await db.every(
                "SELECT batch_id FROM leases JOIN batches USING (batch_id) "
                f"WHERE (until < {NOW} AND {LEFT}) OR (owner = ? AND {UNFINISHED}) "
                "ORDER BY position FOR UPDATE OF leases SKIP LOCKED",
                (self.owner,),
            )
            taken = [str(row[0]) for row in found if row[0] not in known]
            for batch_id in taken:
                query = f"UPDATE leases SET owner = ?, until = {NOW} + ? WHERE batch_id = ?"
                await db.execute(query, (self.owner, self._lease_s, batch_id))
        loaded = [await self._load(batch_id) for batch_id in taken]
        return [(batch, stops) for batch, stops in loaded if batch.finished_at is None or stops]

    async def open_webhooks(self) -> list[str]:
        """`StoreReader.open_webhooks`, of this dispatcher's batches."""
        rows = await self._db.every(
            "SELECT batch_id FROM webhooks JOIN leases USING (batch_id) WHERE state = 'open' AND owner = ?",
            (self.owner,),
        )
        return [str(row[0]) for row in rows]

    async def own_webhook(self, batch_id: str) -> WebhookRow | None:
        lease = await self._db.one("SELECT owner FROM leases WHERE batch_id = ?", (batch_id,))
        return await self.webhook(batch_id) if lease is not None and lease[0] == self.owner else None

    async def purge(self, finished_before: float) -> int:
        gone = await super().purge(finished_before)
        if gone:
            async with self._db.writing() as db:
                await db.execute("DELETE FROM leases WHERE batch_id NOT IN (SELECT batch_id FROM batches)")
        return gone

    async def elsewhere(self, batch_ids: Iterable[str]) -> set[str]:
        """Which of these are unfinished batches that another dispatcher works on."""
        asked = sorted(batch_ids)
        rows = await self._db.every(
            "SELECT b.batch_id FROM batches b JOIN leases l ON l.batch_id = b.batch_id "
            f"WHERE b.finished_at IS NULL AND l.owner <> ? AND b.batch_id IN ({', '.join('?' * len(asked))})",
            (self.owner, *asked),
        )
        return {str(row[0]) for row in rows}

    async def _claim(self, db: Writing, batch_id: str) -> None:
        await db.execute(f"INSERT INTO leases VALUES (?, ?, {NOW} + ?)", (batch_id, self.owner, self._lease_s))

    # -- steps

    async def commit(self, step: Step) -> None:
        """`Store.commit`; a step whose commit was done but not heard of is known again by its number.

        Raises:
            LeaseLost: of some of its batches.
        """
        if step is not self._last:
            self._last, self._number = step, self._number + 1
        row = await self._db.one("SELECT step FROM dispatchers WHERE owner = ?", (self.owner,))
        if row is None or row[0] != self._number:
            await super().commit(step)

    async def _check_ours(self, db: Writing, step: Step) -> None:
        await self._hold(db, step.batch_ids)
        await db.execute(
            "INSERT INTO dispatchers VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET step = excluded.step",
            (self.owner, self._number),
        )

    async def _hold(self, db: Writing, batch_ids: Iterable[str]) -> None:
        """Lock their leases to the end of the transaction.

        Raises:
            LeaseLost: of those that another dispatcher has taken over.
        """
        touched = sorted(batch_ids)
        if touched:
            marks = ", ".join("?" * len(touched))
            query = f"SELECT batch_id FROM leases WHERE owner = ? AND batch_id IN ({marks}) FOR UPDATE"
            ours = {row[0] for row in await db.every(query, (self.owner, *touched))}
            if lost := set(touched) - ours:
                raise LeaseLost(lost)

    async def _tell(self, db: Writing, step: Step) -> None:
        news = {p.rollout.batch_id for p in step.published} | step.batches.keys()
        for batch_id in sorted(news):
            await db.execute("SELECT pg_notify(?, ?)", (CHANNEL, json.dumps({"ring": batch_id})))

    async def tell(self, message: dict[str, Any]) -> None:
        """Tell the other dispatchers; those that do not listen now will not hear it."""
        text = json.dumps(message)
        if len(text) <= NOTICE_BYTES:
            async with self._db.writing() as db:
                await db.execute("SELECT pg_notify(?, ?)", (CHANNEL, text))

    # -- the rate that all dispatchers share

    async def slot(self, arn: str, rate: float) -> float:
        """Take the next place in an ARN's calls; seconds to wait for it."""
        async with self._db.writing() as db:
            row = await db.one(
                f"INSERT INTO rates VALUES (?, {NOW} + ?) ON CONFLICT (arn) DO UPDATE "
                f"SET next_at = greatest(rates.next_at, {NOW}) + ? RETURNING next_at - ? - {NOW}",
                (arn, 1 / rate, 1 / rate, 1 / rate),
            )
        assert row is not None
        return max(0.0, float(row[0]))


@asynccontextmanager
async def open_shared_store(url: str, lease_s: float, *, one_address: bool = False) -> AsyncIterator[SharedStore]:
    """Connect, and make the tables where there are none. Leases are released at the end. See `SharedStore`.

    Raises:
        StoreTrouble: the server cannot be reached.
        StateUnusable: written by another version.
        OSError, asyncpg.PostgresError: the URL, the user or the database is wrong.
    """
    with told():
        pool = await asyncpg.create_pool(url, min_size=1, max_size=16, timeout=10, command_timeout=60)
    try:
        async with pool.acquire() as db, db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(7237126119)")  # two first starts at once
            if await db.fetchval("SELECT to_regclass('meta')") is None:
                # Only then: "IF NOT EXISTS" locks the tables even where they exist, against those who work on them.
                await db.execute(schema.postgres() + TABLES)
            await db.executemany("INSERT INTO meta VALUES ($1, $2) ON CONFLICT DO NOTHING", schema.first_meta())
            meta = dict(await db.fetch("SELECT key, value FROM meta"))
        if meta["version"] != str(schema.VERSION):
            raise StateUnusable(f"it has schema version {meta['version']}; this build writes {schema.VERSION}")
        store = SharedStore(PostgresDatabase(pool), bytes.fromhex(meta["secret"]), lease_s, one_address=one_address)
        try:
            yield store
        finally:
            await store.release()
    finally:
        await pool.close()
