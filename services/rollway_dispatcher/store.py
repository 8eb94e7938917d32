"""Everything that must outlive us, in a database (`database`).

All changes of a scheduler step go into one transaction: either the whole step happened or none of it. What the API
shows is read from here, so nothing is shown that a crash could take back. Every method raises `StoreTrouble` when the
database is in the way, and can be repeated.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import orjson

from rollway_dispatcher import schema
from rollway_dispatcher.database import Database, Reading, Writing
from rollway_dispatcher.order import Order
from rollway_dispatcher.rollout import Batch, Standing
from rollway_dispatcher.step import Step, Stop
from rollway_dispatcher.store_reader import StoreReader, WebhookRow
from rollway_wire.batch import TERMINAL, Group, RolloutState, Webhook
from rollway_wire.problems import Conflict, NotFound

_SELECT_BATCH = "SELECT document, total, created_at, cancelled, contract_error, finished_at FROM batches"
_TERMINAL = tuple(s.value for s in TERMINAL)


class Store(StoreReader):
    """Made by `rollway_dispatcher.state_file.open_store`, or as a `SharedStore`."""

    def __init__(self, db: Database, secret: bytes) -> None:
        super().__init__(db)
        self.secret = secret
        """Random, made with the database: report keys are derived from it."""

    # Writing.

    async def create_batch(
        self,
        batch: Batch,
        groups: Iterable[Group],
        *,
        key: str | None,
        fingerprint: str,
        webhook: Webhook | None = None,
    ) -> tuple[str, bool]:
        """Store a batch with its groups and rollouts; (batch id, True), or the earlier batch of this key and False.

        Raises:
            Conflict: the key has been used with another body.
        """
        o = batch.order
        async with self._db.writing() as db:
            if key is not None and (known := await self._known(db, key, fingerprint)) is not None:
                return known, False
            made = await db.execute(
                "INSERT INTO batches (batch_id, idempotency_key, fingerprint, document, total, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (idempotency_key) DO NOTHING",
                (o.batch_id, key, fingerprint, o.model_dump_json().encode(), batch.total, batch.created_at),
            )
            if made == 0 and key is not None:  # another dispatcher was quicker
                known = await self._known(db, key, fingerprint)
                assert known is not None
                return known, False
            await db.insert_many(
                "groups", [(o.batch_id, i, g.group_id, orjson.dumps(g.payload)) for i, g in enumerate(groups)]
            )
            await db.insert_many(schema.ROLLOUTS, [schema.rollout_row(r) for r in batch.rollouts.values()])
            if webhook is not None:
                document = webhook.model_dump_json().encode()
                await db.execute("INSERT INTO webhooks (batch_id, document) VALUES (?, ?)", (o.batch_id, document))
            await self._claim(db, o.batch_id)
        return o.batch_id, True

    async def commit(self, step: Step) -> None:
        """Write one step, all of it or nothing."""
        rollouts = [schema.rollout_row(r) for r in step.rollouts.values()]
        results = [schema.result_row(p) for p in step.published]
        batches = [(int(b.cancelled), b.contract_error, b.finished_at, b.batch_id) for b in step.batches.values()]
        opened = [(s.session_id, s.batch_id, s.since) for s in step.stops_opened]
        async with self._db.writing() as db:
            await self._check_ours(db, step)
            await db.insert_many(schema.ROLLOUTS, rollouts, schema.OVERWRITE_ROLLOUT)
            await db.insert_many("results", results)
            await db.insert_many("stops", opened)
            await db.delete_many("stops", "session_id", step.stops_closed)
            if batches:
                query = "UPDATE batches SET cancelled = ?, contract_error = ?, finished_at = ? WHERE batch_id = ?"
                await db.execute_many(query, batches)
            await self._tell(db, step)

    async def _claim(self, db: Writing, batch_id: str) -> None:
        """A batch has arrived here."""

    async def _check_ours(self, db: Writing, step: Step) -> None:
        """The batches of a step are still this dispatcher's."""

    async def _tell(self, db: Writing, step: Step) -> None:
        """Tell others what the step changes."""

    async def _hold(self, db: Writing, batch_ids: Iterable[str]) -> None:
        """These batches are still this dispatcher's."""

    async def own_webhook(self, batch_id: str) -> WebhookRow | None:
        """None: it has none, or another dispatcher works on the batch."""
        return await self.webhook(batch_id)

    async def set_webhook(self, row: WebhookRow) -> None:
        """Write how far a webhook is.

        Raises:
            LeaseLost: another dispatcher has taken the batch over.
        """
        async with self._db.writing() as db:
            await self._hold(db, [row.batch_id])
            await db.execute(
                "UPDATE webhooks SET delivered = ?, attempt = ?, next_at = ?, failing_since = ?, last_error = ?, "
                "state = ? WHERE batch_id = ?",
                (row.delivered, row.attempt, row.next_at, row.failing_since, row.last_error, row.state, row.batch_id),
            )

    async def purge(self, finished_before: float) -> int:
        """Delete batches finished before then whose sessions are all stopped; how many."""
        old = (
            "SELECT batch_id FROM batches WHERE finished_at < ? "
            "AND batch_id NOT IN (SELECT batch_id FROM stops)"
        )  # fmt: skip
        async with self._db.writing() as db:
            for table in ("groups", "rollouts", "results", "webhooks"):
                await db.execute(f"DELETE FROM {table} WHERE batch_id IN ({old})", (finished_before,))
            return await db.execute(f"DELETE FROM batches WHERE batch_id IN ({old})", (finished_before,))

    # Reading.

    async def known_batch(self, key: str, fingerprint: str) -> str | None:
        """The batch an idempotency key stands for.

        Raises:
            Conflict: it stands for another body.
        """
        return await self._known(self._db, key, fingerprint)

    async def _known(self, db: Reading, key: str, fingerprint: str) -> str | None:
        row = await db.one("SELECT batch_id, fingerprint FROM batches WHERE idempotency_key = ?", (key,))
        if row is None:
            return None
        if row[1] != fingerprint:
            raise Conflict(f"Idempotency-Key {key!r:.80} was used with another body, for batch {row[0]}")
        return str(row[0])

    async def unfinished(self, known: Container[str] = ()) -> list[tuple[Batch, list[Stop]]]:
        """Every batch with something left to do but for those ``known``, in order of arrival, with its sessions to
        stop."""
        rows = await self._db.every(
            f"{_SELECT_BATCH} WHERE finished_at IS NULL OR batch_id IN (SELECT batch_id FROM stops) ORDER BY position"
        )
        found = [await self._unfinished_batch(row) for row in rows]
        return [(batch, stops) for batch, stops in found if batch.batch_id not in known]

    async def _load(self, batch_id: str) -> tuple[Batch, list[Stop]]:
        return await self._unfinished_batch(await self._db.one(f"{_SELECT_BATCH} WHERE batch_id = ?", (batch_id,)))

    async def _unfinished_batch(self, row: Any) -> tuple[Batch, list[Stop]]:
        order = Order.model_validate_json(row[0])
        marks = ", ".join("?" * len(_TERMINAL))
        open_rollouts = await self._db.every(
            f"{schema.SELECT_ROLLOUT} WHERE batch_id = ? AND state NOT IN ({marks}) ORDER BY ordinal",
            (order.batch_id, *_TERMINAL),
        )
        rollouts = {r.ordinal: r for r in map(schema.rollout_of, open_rollouts)}
        counts = await self._counts(order.batch_id)
        batch = Batch(
            groups=await self._standings(order),
            durations=await self._durations(order),
            order=order,
            total=row[1],
            created_at=row[2],
            rollouts=rollouts,
            published=row[1] - len(rollouts),
            usable=counts.get(RolloutState.SUCCEEDED, 0),
            cancelled=bool(row[3]),
            contract_error=row[4],
            finished_at=row[5],
        )
        stops = await self._db.every("SELECT session_id, since FROM stops WHERE batch_id = ?", (order.batch_id,))
        return batch, [Stop(order.batch_id, s[0], s[1]) for s in stops]

    async def _standings(self, order: Order) -> list[Standing]:
        rows = await self._db.every(
            "SELECT grp, min(ordinal), count(*), count(*) FILTER (WHERE state = ?), count(admitted_at) "
            "FROM rollouts WHERE batch_id = ? GROUP BY grp ORDER BY grp",
            (RolloutState.SUCCEEDED.value, order.batch_id),
        )
        extra = order.policy.extra
        return [Standing(first, size, size - extra, done, begun=bool(begun)) for _, first, size, done, begun in rows]

    async def _durations(self, order: Order) -> list[float]:
        rows = await self._db.every(
            "SELECT noticed_at - invoked_at FROM rollouts "
            "WHERE batch_id = ? AND state = ? AND noticed_at IS NOT NULL AND invoked_at IS NOT NULL",
            (order.batch_id, RolloutState.SUCCEEDED.value),
        )
        return [float(row[0]) for row in rows]

    async def payload(self, batch_id: str, group: int) -> dict[str, Any]:
        """The payload of the batch's ``group``-th group, from 0."""
        row = await self._db.one("SELECT payload FROM groups WHERE batch_id = ? AND position = ?", (batch_id, group))
        if row is None:
            raise NotFound(f"batch {batch_id} has no group at position {group}")
        value: dict[str, Any] = orjson.loads(row[0])
        return value
