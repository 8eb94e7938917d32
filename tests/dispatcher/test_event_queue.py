"""Results told by an SQS queue: noticed without listing; whatever else it brings, or that it is gone, is harmless.

The queue, the bucket's notifications and EventBridge are moto's; they are set up with the JSON of the README.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import boto3
import pytest
from structlog.testing import capture_logs

from rollway_dispatcher import event_queue, lookout
from rollway_dispatcher.event_queue import EventQueue
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.lookout import Announced, Lookout
from rollway_dispatcher.s3_events import Made, Unreadable, objects_made
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.step import Arrived, Happened, News
from rollway_kit.object_store import ListedObject
from rollway_wire.ids import result_key
from tests.dispatcher.harness import Api, calling, runs, serving
from tests.dispatcher.test_restart import start
from tests.dispatcher.test_schedule import Desk, batch_of
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]
README = Path(event_queue.__file__).with_name("README.md")
NEVER_S = 300.0
"""Between two listings, where listing must not be what notices."""
SOON_S = 240.0


def documented(name: str, **names: str) -> Any:
    """A block of JSON of the README, with the test's own names in place of its."""
    (text,) = re.findall(rf"```json {name}\n(.*?)```", README.read_text(), re.DOTALL)
    for theirs, ours in names.items():
        theirs = theirs.replace("_", "-")
        assert theirs in text
        text = text.replace(theirs, ours)
    return json.loads(text)


@dataclass
class Queue:
    url: str
    arn: str
    sqs: Any
    dead: str
    """URL of its dead-letter queue."""

    def send(self, body: Any) -> None:
        self.sqs.send_message(QueueUrl=self.url, MessageBody=body if isinstance(body, str) else json.dumps(body))

    def waiting(self, url: str | None = None) -> int:
        """Messages in it, seen or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[n]) for n in names)

    async def emptied(self) -> None:
        async def empty() -> bool:
            return await asyncio.to_thread(self.waiting) == 0

        await eventually(empty, "every message was dealt with", 120)

    def show_again(self, receipt: str) -> None:
        self.sqs.change_message_visibility(QueueUrl=self.url, ReceiptHandle=receipt, VisibilityTimeout=0)


@pytest.fixture
def queue(s3: Bucket) -> Iterator[Queue]:
    with closing(boto3.client("sqs", endpoint_url=s3.endpoint_url, region_name=s3.region)) as sqs:
        name = f"results-{uuid.uuid4().hex[:12]}"
        policy = documented("queue policy", my_bucket=s3.name, rollway_results=name)
        dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        arn = f"arn:aws:sqs:{s3.region}:123456789012:{name}"
        redrive = {"deadLetterTargetArn": f"{arn}-dead", "maxReceiveCount": 2}
        url = sqs.create_queue(
            QueueName=name, Attributes={"Policy": json.dumps(policy), "RedrivePolicy": json.dumps(redrive)}
        )["QueueUrl"]
        yield Queue(url, arn, sqs, dead)


def notify(s3: Bucket, queue: Queue) -> None:
    """The bucket tells the queue."""
    name = queue.arn.rsplit(":", 1)[1]
    s3.client.put_bucket_notification_configuration(
        Bucket=s3.name, NotificationConfiguration=documented("notification", rollway_results=name)
    )


def notify_by_event_bridge(s3: Bucket, queue: Queue) -> None:
    s3.client.put_bucket_notification_configuration(
        Bucket=s3.name, NotificationConfiguration={"EventBridgeConfiguration": {}}
    )
    with closing(boto3.client("events", endpoint_url=s3.endpoint_url, region_name=s3.region)) as events:
        pattern = documented("event pattern", my_bucket=s3.name)
        events.put_rule(Name=s3.name, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=s3.name, Targets=[{"Id": "1", "Arn": queue.arn}])


def told(settings: DispatcherSettings, queue: Queue, every_s: float = NEVER_S) -> DispatcherSettings:
    return settings.model_copy(update={"sqs_queue_url": queue.url, "poll_interval_s": every_s})


@pytest.mark.parametrize("way", [notify, notify_by_event_bridge])
def test_what_the_bucket_sends_is_what_is_read(s3: Bucket, queue: Queue, way: Callable[[Bucket, Queue], None]) -> None:
    way(s3, queue)
    keys = ["exp/b1/it's+(=)@:,!/s 1.json", "exp/b1/ü/s.json"]
    for key in keys:
        s3.put(key, b"{}")
    found: list[Made] = []
    while len(found) < len(keys):
        answer = queue.sqs.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        assert answer.get("Messages"), "a message for each object"
        for message in answer["Messages"]:
            found += objects_made(message["Body"])
    assert sorted(found, key=lambda m: m.key) == [Made(s3.name, key) for key in sorted(keys)]


@pytest.mark.parametrize("way", [notify, notify_by_event_bridge])
async def test_an_agent_that_does_not_push_is_noticed_through_the_queue(
    settings: DispatcherSettings, batch: Make, s3: Bucket, queue: Queue, way: Callable[[Bucket, Queue], None]
) -> None:
    await asyncio.to_thread(way, s3, queue)
    async with serving(told(settings, queue)) as api:
        made = await api.submit(batch([{"reward": 1}, {"act": "raise"}], n=2, limits={"max_attempts": 1}))
        results = await api.results(made["batch_id"], within_s=SOON_S)
        assert sorted(r["rollout"]["state"] for r in results) == ["failed"] * 2 + ["succeeded"] * 2
        await queue.emptied()


def of_s3(bucket: str, key: str) -> dict[str, Any]:
    return {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}]}


async def session(api: Api, batch_id: str) -> str:
    await api.until_state(batch_id, "running", 1)
    return str((await api.rollouts(batch_id))[0]["session_id"])


async def test_foreign_early_doubled_and_unreadable_messages_change_nothing(
    settings: DispatcherSettings, batch: Make, s3: Bucket, queue: Queue, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, runs_dir: Path,
) -> None:  # fmt: skip
    """A message that were believed too much would end the rollout: it is announced, and there is nothing in S3."""
    cannot_read = EventQueue._cannot_read
    unread: list[str] = []
    """Receipts of messages that could not be read: they are shown again at once, and not the others with them."""

    def noted(self: EventQueue, message: Any, why: Unreadable) -> None:
        cannot_read(self, message, why)
        unread.append(message["ReceiptHandle"])

    monkeypatch.setattr(EventQueue, "_cannot_read", noted)
    gate = tmp_path / "go"
    with capture_logs() as logs:
        async with serving(told(settings, queue)) as api:
            made = await api.submit(batch([{"reward": 1, "wait_for": str(gate)}], limits={"max_attempts": 1}))
            mine = await session(api, made["batch_id"])
            key = result_key(f"exp/{made['batch_id']}", "g0", mine)
            for bucket, wrong in (
                ("other", key), (s3.name, key.replace("exp/", "exp2/")), (s3.name, key.replace("/g0/", "/g1/")),
                (s3.name, f"x/{key}"), (s3.name, key.replace(mine, mine[::-1])), (s3.name, "a"), (s3.name, ""),
            ):  # fmt: skip
                queue.send(of_s3(bucket, wrong))
            queue.send({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": s3.name})
            queue.send("neither JSON nor ours")

            async def dead() -> bool:
                while unread:
                    await asyncio.to_thread(queue.show_again, unread.pop())
                return await asyncio.to_thread(queue.waiting, queue.dead) == 1

            await eventually(dead, "what cannot be read is in the dead-letter queue", 120)
            await queue.emptied()
            assert (await api.status(made["batch_id"]))["counts"] == {"running": 1}
            gate.touch()
            await eventually(lambda: s3.keys(key), "the result is saved", 120)
            for _ in range(3):
                queue.send(of_s3(s3.name, key))
            (result,) = await api.results(made["batch_id"], within_s=SOON_S)
            queue.send(of_s3(s3.name, key))
            await queue.emptied()
            assert await api.results(made["batch_id"]) == [result]
    assert result["rollout"]["state"] == "succeeded"
    assert list(runs(runs_dir).values()) == [1]
    assert [e["log_level"] for e in logs if e["event"] == "message_unreadable"] == ["error"], (
        "said once, however often seen"
    )


async def test_while_the_queue_is_gone_listing_notices_and_the_log_says_so(
    settings: DispatcherSettings, batch: Make, s3: Bucket, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "WAIT_S", 1)  # a long poll does not notice

    def named(event: str) -> list[Any]:
        return [e for e in logs if e["event"] == event]

    with capture_logs() as logs:
        await asyncio.to_thread(notify, s3, queue)
        async with serving(told(settings, queue, 0.1)) as api:
            for taken_away in (False, True):
                if taken_away:
                    await asyncio.to_thread(queue.sqs.delete_queue, QueueUrl=queue.url)
                made = await api.submit(batch([{"reward": 1}] * 2))
                results = await api.results(made["batch_id"], within_s=SOON_S)
                assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 2
            await eventually(lambda: named("event_queue_lost"), "the loss is logged", 120)
            assert len(named("event_queue_lost")) == 1
            name = queue.url.rsplit("/", 1)[1]
            await asyncio.to_thread(queue.sqs.create_queue, QueueName=name)
            for _ in range(event_queue.RECEIVERS):
                queue.send({"Event": "s3:TestEvent"})
            await eventually(lambda: named("event_queue_back"), "and its return", 240)


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
async def test_a_message_taken_by_another_dispatcher_reaches_the_one_that_owns_the_batch(
    services: Services, apart: DispatcherSettings, batch: Make, s3: Bucket, queue: Queue
) -> None:
    """Only the other one listens to the queue, so it takes every message."""
    await asyncio.to_thread(notify, s3, queue)
    owner = await start(services, apart.model_copy(update={"poll_interval_s": NEVER_S}))
    other = await start(services, told(apart, queue))
    await hear_each_other(apart)
    async with calling(owner.url) as api:
        made = await api.submit(batch([{"reward": 1}] * 3, n=2))
        results = await api.results(made["batch_id"], within_s=SOON_S)
    assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 6
    await queue.emptied()
    assert "batch_taken_over" not in other.logs()


async def hear_each_other(settings: DispatcherSettings) -> None:
    """Both dispatchers listen: what one passes on while the other does not is noticed by listing alone."""
    assert settings.database_url is not None
    db = await asyncpg.connect(settings.database_url.get_secret_value(), timeout=60)
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"

    async def both() -> bool:
        return bool(await db.fetchval(query) == 2)

    try:
        await eventually(both, "both dispatchers listen", 60)
    finally:
        await db.close()


class Listings:
    """A scripted S3 that counts its listings."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[str] = []

    async def list(self, bucket: str, prefix: str) -> list[ListedObject]:
        self.count += 1
        return [ListedObject(key, 1) for key in self.keys]


class Enough(Exception):
    pass


async def test_listing_is_rarer_while_the_queue_tells_and_as_before_once_it_missed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, batch, listings, announced = Desk(), batch_of(1, 2), Listings(), Announced()
    desk.step(Arrived(batch))
    desk.run_all()
    news: list[News] = []

    async def in_a_hundred_intervals() -> int:
        before, left = listings.count, 100

        async def tick(seconds: float) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Enough

        monkeypatch.setattr(lookout, "asyncio", SimpleNamespace(sleep=tick))
        with pytest.raises(Enough):
            await Lookout(listings, 1.0, news.append, announced).keep(batch)  # type: ignore[arg-type]
        return listings.count - before

    assert await in_a_hundred_intervals() == 100
    announced.heard(batch.order)
    assert await in_a_hundred_intervals() == 10
    listings.keys = [result_key("e/b1", "g0", next(iter(desk.core.sessions)))]
    assert await in_a_hundred_intervals() == 91, "the tenth finds what the queue had not told of"
    assert news[0] == Happened(next(iter(desk.core.sessions)), Trigger.NOTICED)
    announced.heard(batch.order)
    announced.forget()
    listings.keys = []
    assert await in_a_hundred_intervals() == 100
