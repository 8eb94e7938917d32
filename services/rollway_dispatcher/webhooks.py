"""Calls the address that a batch names when something of it has finished, until each call has been taken.

How far a batch's webhook is lies on disk (`WebhookRow`): the number of results told and the tries of the next call.
What is due follows from that and from the results, so nothing is written when a rollout finishes, and a restart goes on
where it was. Each event comes at least once, a batch's in order; its ``webhook-id`` is the same each time. Of several
dispatchers the one that holds the batch's lease makes its calls, and one that has lost it writes nothing of them.

Signed as Standard Webhooks has it (github.com/standard-webhooks/standard-webhooks): HMAC-SHA256 over
``{webhook-id}.{webhook-timestamp}.{body}``. Only hosts of the allow-list are called, and redirects are not followed, or
whoever may post a batch could make this service call whatever it can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import orjson
import structlog

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.clock import Clock
from rollway_dispatcher.database import LeaseLost, StoreTrouble
from rollway_dispatcher.outbound import NoAnswer, Outbound
from rollway_dispatcher.store_reader import StoredResult, WebhookRow
from rollway_dispatcher.webhook_signature import signed, signing_key
from rollway_wire.batch import BatchState, BatchStatus
from rollway_wire.problems import NotFound

log = structlog.get_logger()

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
GIVEN_UP_S = 24 * 3600.0
"""After so long of failures in a row nobody is called any more for this batch."""
ANSWER_S = 15.0
AT_ONCE = 16
"""Calls under way, over all batches."""
LOOK_AGAIN_S = 30.0
"""Where no bell rings: a batch that another dispatcher works on."""


class WebhookStore(Protocol):
    async def open_webhooks(self) -> list[str]: ...

    async def own_webhook(self, batch_id: str) -> WebhookRow | None: ...

    async def set_webhook(self, row: WebhookRow) -> None: ...

    async def status(self, batch_id: str) -> BatchStatus: ...

    async def results(
        self, batch_id: str, cursor: int, limit: int, max_bytes: int, *, trajectories: bool = True
    ) -> tuple[list[StoredResult], int, int]: ...


class Webhooks:
    """One task per batch whose webhook is not done. Made by `running_webhooks`."""

    def __init__(
        self, store: WebhookStore, bell: Bell, clock: Clock, http: Outbound, key: bytes, look_s: float | None
    ) -> None:
        """
        Args:
            look_s: seconds between two looks for batches taken over from other dispatchers; None: there are none.
        """
        self._look_s = look_s
        self._serving: set[str] = set()
        self._store, self._bell, self._clock, self._http, self._key = store, bell, clock, http, key
        self._calling = asyncio.Semaphore(AT_ONCE)
        self._begun: asyncio.Queue[str] = asyncio.Queue()  # bounded by the batches posted

    def begin(self, batch_id: str) -> None:
        """A batch with a webhook is on disk."""
        self._begun.put_nowait(batch_id)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for batch_id in await self._open():
                    self._take(group, batch_id)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_s):
                        while True:
                            self._take(group, await self._begun.get())

    def _take(self, group: asyncio.TaskGroup, batch_id: str) -> None:
        if batch_id not in self._serving:
            self._serving.add(batch_id)
            task = group.create_task(self._serve(batch_id), name=f"webhook {batch_id}")
            task.add_done_callback(lambda _: self._serving.discard(batch_id))

    async def _open(self) -> list[str]:
        while True:
            try:
                return await self._store.open_webhooks()
            except StoreTrouble as e:
                log.warning("webhooks_wait", why=str(e))
                await asyncio.sleep(LOOK_AGAIN_S / 10)

    async def _serve(self, batch_id: str) -> None:
        while True:
            ring = self._bell.listen(batch_id)
            try:
                row = await self._store.own_webhook(batch_id)
                if row is None or row.state != "open":
                    return
                event = await self._due(row)
                if event is None:
                    await asyncio.wait([ring], timeout=LOOK_AGAIN_S)
                    continue
            except (NotFound, LeaseLost):
                return  # its time was over, or it is another's now
            except StoreTrouble as e:
                log.warning("webhook_waits", batch_id=batch_id, why=str(e))
                await asyncio.sleep(LOOK_AGAIN_S / 10)
                continue
            finally:
                self._bell.ignore(batch_id, ring)
            try:
                await self._tell(row, *event)
            except LeaseLost:
                log.warning("webhook_lost", batch_id=batch_id, why="another dispatcher took the batch over")
                return

    async def _due(self, row: WebhookRow) -> tuple[str, dict[str, Any]] | None:
        """(id, body) of the next event; None: nothing is due. A webhook with nothing left to tell is done."""
        told = row.delivered
        if "rollout.finished" in row.webhook.events:
            found, _, total = await self._store.results(row.batch_id, told, 1, 0, trajectories=False)
            if found:
                data = {"cursor": found[0].seq, "rollout": orjson.loads(found[0].document)}
                return f"{row.batch_id}.{found[0].seq}", {"type": "rollout.finished", "data": data}
            if told < total:
                return None
        status = await self._store.status(row.batch_id)
        if status.state is not BatchState.FINISHED:
            return None
        if "batch.finished" not in row.webhook.events:
            await self._store.set_webhook(replace(row, state="done"))
            return None
        data = status.model_dump(mode="json", exclude={"webhook"})
        return f"{row.batch_id}.finished", {"type": "batch.finished", "data": data}

    async def _tell(self, row: WebhookRow, event_id: str, body: dict[str, Any]) -> None:
        """One try at one call, when its time has come, and what came of it on disk."""
        await asyncio.sleep(max(0.0, row.next_at - self._clock.now()))
        async with self._calling:
            why, gone = await self._call(row.webhook.url, event_id, body)
        now = self._clock.now()
        if why is None:
            done = body["type"] == "batch.finished"
            told = row.delivered + (not done)
            after = replace(
                row, delivered=told, state="done" if done else "open", attempt=0, next_at=0.0, failing_since=None,
                last_error=None,
            )  # fmt: skip
        else:
            since = row.failing_since or now
            lost = gone or now - since > GIVEN_UP_S
            pause = min(FIRST_PAUSE_S * 2.0 ** min(row.attempt, 20), LONGEST_PAUSE_S) * random.uniform(0.8, 1.2)
            after = replace(
                row, state="given_up" if lost else "open", attempt=row.attempt + 1, next_at=now + pause,
                failing_since=since, last_error=why,
            )  # fmt: skip
            said = log.error if lost else log.warning
            said("webhook_given_up" if lost else "webhook_failed", batch_id=row.batch_id, event_id=event_id, why=why)
        while True:
            try:
                return await self._store.set_webhook(after)
            except StoreTrouble as e:  # the call has been made: what came of it must get to disk
                log.warning("webhook_waits", batch_id=row.batch_id, why=str(e))
                await asyncio.sleep(LOOK_AGAIN_S / 10)

    async def _call(self, url: str, event_id: str, body: dict[str, Any]) -> tuple[str | None, bool]:
        """(why it was not taken, or None; whether it never will be)."""
        raw = orjson.dumps({**body, "timestamp": self._clock.now()})
        headers = signed(self._key, event_id, self._clock.now(), raw)
        try:
            async with asyncio.timeout(2 * ANSWER_S):
                answer = await self._http.call("POST", url, body=raw, headers=headers, silence_s=ANSWER_S)
        except (NoAnswer, TimeoutError) as e:
            return f"no answer: {e}"[:300], False
        return (None, False) if answer.ok else (f"answered {answer.status}", answer.status == 410)


@asynccontextmanager
async def running_webhooks(
    store: WebhookStore, bell: Bell, clock: Clock, secret: str, look_s: float | None = None
) -> AsyncIterator[Webhooks]:
    """Calls go out for as long as the block; those not taken by then are repeated by the next start, or by another
    dispatcher."""
    http = Outbound(max_connections=AT_ONCE, keep_alive=False)
    webhooks = Webhooks(store, bell, clock, http, signing_key(secret), look_s)
    task = asyncio.create_task(webhooks.run(), name="webhooks")
    try:
        yield webhooks
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await http.close()
