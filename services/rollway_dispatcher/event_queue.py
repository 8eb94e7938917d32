"""Listens to an SQS queue to which S3 tells of objects made: a hint that a result is there, and no more than that.

A message is deleted only when the dispatcher that works on its batch has been told; taken by one that dies, it comes
again after `VISIBLE_AGAIN_S`, and what is lost or late is noticed by listing. One that comes twice, out of order or of
an object that is nobody's result changes nothing. One that cannot be read is not ours to delete: it is logged once and
left to the queue's redrive policy. While the queue does not answer, results are noticed by listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aioboto3
import aiohttp
import structlog
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError

from rollway_dispatcher.database import StoreTrouble
from rollway_dispatcher.engine import Engine
from rollway_dispatcher.s3_events import Made, Unreadable, objects_made
from rollway_dispatcher.settings import DispatcherSettings

if TYPE_CHECKING:
    from types_aiobotocore_sqs import SQSClient

    from rollway_dispatcher.fleet import Fleet

log = structlog.get_logger()

WAIT_S = 20
"""Of one long poll: the longest there is."""
AT_ONCE = 10
"""Messages in one answer: the most there are."""
RECEIVERS = 4
"""Long polls under way: a few hundred results a second."""
VISIBLE_AGAIN_S = 30
"""A message that was not dealt with is given to somebody else after so long."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
REMEMBERED = 1000
"""Unreadable messages that are not logged again."""
_FAILURES = (ClientError, BotoCoreError, aiohttp.ClientError, TimeoutError)


def place_of(queue_url: str, region: str | None) -> tuple[str, str | None]:
    """(endpoint, region) of a queue: AWS's own URLs name both; any other service's endpoint is where its queue is."""
    parts = urlsplit(queue_url)
    named = re.search(r"(?:^|\.)sqs(?:-fips)?\.([a-z0-9-]+)\.", parts.hostname or "")
    ours = named is not None and "amazonaws." in (parts.hostname or "")
    return f"{parts.scheme}://{parts.netloc}", named[1] if named is not None and ours else region


class EventQueue:
    """Made by `running_event_queue`."""

    def __init__(
        self, sqs: SQSClient, url: str, take: Callable[[list[Made]], Awaitable[None]], lost: Callable[[], None]
    ) -> None:
        """
        Args:
            take: takes in what was made; `StoreTrouble` when it could not, and the messages come again.
            lost: called whenever the queue is found not to work.
        """
        self._sqs, self._url, self._take, self._lost = sqs, url, take, lost
        self._failing: set[int] = set()
        """Receivers whose last call failed."""
        self._unreadable: dict[str, None] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for receiver in range(RECEIVERS):
                group.create_task(self._receive_on(receiver), name=f"event queue {receiver}")

    async def _receive_on(self, receiver: int) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                await self._receive()
            except StoreTrouble as e:
                log.warning("events_not_passed_on", why=str(e))
            except _FAILURES as e:
                self._fails(receiver, e)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                pause = FIRST_PAUSE_S
                if receiver in self._failing:
                    self._failing.remove(receiver)
                    if not self._failing:
                        log.info("event_queue_back", queue=self._url)

    async def _receive(self) -> None:
        answer = await self._sqs.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=AT_ONCE, WaitTimeSeconds=WAIT_S, VisibilityTimeout=VISIBLE_AGAIN_S
        )
        made: list[Made] = []
        read: list[str] = []
        for message in answer.get("Messages", []):
            try:
                made += objects_made(message["Body"])
            except Unreadable as e:
                self._cannot_read(message, e)
            else:
                read.append(message["ReceiptHandle"])
        if made:
            await self._take(made)
        if read:
            await self._delete(read)

    async def _delete(self, receipts: list[str]) -> None:
        answer = await self._sqs.delete_message_batch(
            QueueUrl=self._url, Entries=[{"Id": str(i), "ReceiptHandle": r} for i, r in enumerate(receipts)]
        )
        if failed := answer.get("Failed"):
            log.warning("messages_not_deleted", count=len(failed), why=failed[0].get("Message", failed[0]["Code"]))

    def _cannot_read(self, message: Any, why: Unreadable) -> None:
        if message["MessageId"] in self._unreadable:
            return
        self._unreadable[message["MessageId"]] = None
        if len(self._unreadable) > REMEMBERED:
            del self._unreadable[next(iter(self._unreadable))]
        log.error("message_unreadable", message_id=message["MessageId"], why=str(why), body=message["Body"][:300])

    def _fails(self, receiver: int, error: Exception) -> None:
        self._lost()
        if not self._failing:
            log.warning("event_queue_lost", queue=self._url, why=str(error), meanwhile="results are noticed by listing")
        self._failing.add(receiver)


@asynccontextmanager
async def running_event_queue(settings: DispatcherSettings, engine: Engine, fleet: Fleet | None) -> AsyncIterator[None]:
    """Listen for as long as the block, where a queue is set. A bug in it is logged, and listing goes on."""
    url, lost = settings.sqs_queue_url, engine.announced.forget
    if url is None:
        yield
        return
    endpoint, region = place_of(url, settings.region)
    config = AioConfig(
        retries={"total_max_attempts": 2, "mode": "standard"}, connect_timeout=5, read_timeout=WAIT_S + 10,
        max_pool_connections=2 * RECEIVERS,
    )  # fmt: skip

    async def take(made: list[Made]) -> None:
        theirs = [m for m in made if not engine.saved(m.bucket, m.key)]
        if theirs and fleet is not None:
            await fleet.pass_on_made(theirs)

    async def listen(sqs: SQSClient) -> None:
        try:
            await EventQueue(sqs, url, take, lost).run()
        except Exception:
            lost()
            log.exception("event_queue_broke")

    async with aioboto3.Session().client("sqs", endpoint_url=endpoint, region_name=region, config=config) as sqs:
        task = asyncio.create_task(listen(sqs), name="event queue")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
