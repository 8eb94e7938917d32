"""`run_batch` and `run_batch_async`: one item for each payload, in the order they finish."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from rollway_driver.client import AsyncBatchResult, BatchResult, RolloutClient
from rollway_wire.batch import RolloutState
from rollway_wire.failures import FailureType
from rollway_wire.problems import Unavailable
from tests.driver_client.requests import IMPATIENT, QUICK, RUNTIME
from tests.driver_client.scripted_dispatcher import ScriptedBatch, ScriptedDispatcher, torn, unwell
from tests.kit.deadlines import eventually, until

PAYLOADS = [{"prompt": f"{i} + 1", "answer": str(i + 1)} for i in range(5)]


@pytest.fixture
def client(script: ScriptedDispatcher) -> Iterator[RolloutClient]:
    with RolloutClient(runtime=RUNTIME, exp_id="exp", dispatcher_url=script.url, retry=QUICK) as made:
        yield made


def _ending_in(order: list[int]):
    def end(batch: ScriptedBatch) -> None:
        for i in order:
            batch.end(str(i), tokens=2)

    return end


def _mixed(batch: ScriptedBatch) -> None:
    batch.end("3", tokens=2)
    batch.fail("0", FailureType.TIMED_OUT)
    batch.fail("4", FailureType.AGENT_ERROR, result={"status_code": 500, "stop_reason": "boom"})
    batch.end("1", state=RolloutState.CANCELLED)
    batch.fail("2", FailureType.AGENT_DIED, message="exit 137")


def test_items_come_in_order_of_finishing_with_their_index(client: RolloutClient, script: ScriptedDispatcher) -> None:
    script.on_batch = _ending_in([3, 0, 4, 1, 2])
    result = client.run_batch(PAYLOADS, max_concurrent_sessions=2, timeout=60, log_interval=1.0)
    assert isinstance(result, BatchResult)
    items = list(result)
    assert [item.index for item in items] == [3, 0, 4, 1, 2]
    assert all(item.success and item.error is None and item.failure is None for item in items)
    assert all(item.result and item.result["rewards"] == 1.0 and item.elapsed == pytest.approx(2) for item in items)
    assert all(item.trajectory is not None for item in items)
    request = script.only_batch().request
    assert (request.limits.max_concurrent, request.limits.rollout_timeout_s) == (2, 60)
    assert [group.payload for group in request.groups] == PAYLOADS


def test_an_item_tells_each_kind_of_end(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """Success means that the agent saved a result; every other end says why, and `failure` types it."""
    script.on_batch = _mixed
    ended = {item.index: item for item in client.run_batch(PAYLOADS, 5, timeout=60.0)}
    assert [ended[i].success for i in range(5)] == [False, False, False, True, True]
    assert (ended[0].error or "").startswith("Timeout after 60.0s")
    assert "cancelled" in (ended[1].error or "")
    assert "agent_died: exit 137" in (ended[2].error or "")
    assert ended[4].result == {"status_code": 500, "stop_reason": "boom"}
    assert ended[4].failure is not None and ended[4].failure.type is FailureType.AGENT_ERROR


def test_a_payload_that_cannot_be_sent_fails_alone(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """A value without a JSON form and a reserved key fail their own items; the others run."""
    script.on_batch = _ending_in([1])
    items = {i.index: i for i in client.run_batch([{"x": object()}, {"ok": 1}, {"_rollout": {}}], 5)}
    assert [items[i].success for i in range(3)] == [False, True, False]
    assert "JSON" in (items[0].error or "") and "_rollout" in (items[2].error or "")
    assert [group.group_id for group in script.only_batch().request.groups] == ["1"]


def test_no_payloads_no_batch(client: RolloutClient, script: ScriptedDispatcher) -> None:
    assert list(client.run_batch([], 5)) == []
    assert script.posts == 0


def test_a_batch_survives_faults_and_a_restart(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """503s, a torn page and a restart in the middle: one item for each payload."""
    script.faults["results"].extend([unwell(503), torn])

    def run() -> None:
        batch = script.only_batch()
        batch.end("0")
        until(lambda: not script.faults["results"] and script.waiting, "the faults are over and a poll waits")
        script.stop()
        script.start()
        for i in (4, 2, 1, 3):
            batch.end(str(i))

    runner = threading.Thread(target=run)
    runner.start()
    indexes = [item.index for item in client.run_batch(PAYLOADS, 5)]
    runner.join()
    assert indexes == [0, 4, 2, 1, 3]


def test_an_unreachable_dispatcher_raises(script: ScriptedDispatcher) -> None:
    script.stop()
    client = RolloutClient(runtime=RUNTIME, dispatcher_url=script.url, retry=IMPATIENT)
    with client, pytest.raises(Unavailable):
        list(client.run_batch(PAYLOADS, 5))


def test_progress_is_logged(client: RolloutClient, script: ScriptedDispatcher, caplog) -> None:
    """At each interval also while nothing finishes, and at the end."""
    with caplog.at_level(logging.INFO, "rollway_driver"):
        threading.Thread(
            target=lambda: (until(lambda: "0 of 5 done" in caplog.text, "progress"), _mixed(script.only_batch()))
        ).start()
        list(client.run_batch(PAYLOADS, 5, log_interval=0.1))
    assert "5 of 5 done, 3 failed" in caplog.text


def test_leaving_early_cancels_nothing_and_says_so(client: RolloutClient, script: ScriptedDispatcher, caplog) -> None:
    script.on_batch = lambda batch: batch.end("0")
    result = client.run_batch(PAYLOADS, 5)
    items = iter(result)
    with caplog.at_level(logging.WARNING):
        assert next(items).index == 0
        items.close()  # type: ignore[attr-defined]
    assert "left with 4 of 5" in caplog.text and not script.only_batch().cancelled
    assert result.cancel() and script.only_batch().cancelled


async def test_async_items_come_in_order_of_finishing(client: RolloutClient, script: ScriptedDispatcher) -> None:
    script.on_batch = _mixed
    result = client.run_batch_async(PAYLOADS, max_concurrent_sessions=5)
    assert isinstance(result, AsyncBatchResult)
    items = [item async for item in result]
    assert [(item.index, item.success) for item in items] == [
        (3, True), (0, False), (4, True), (1, False), (2, False),
    ]  # fmt: skip


async def test_cancelling_the_iteration_before_its_batch_is_known_stops_it(client: RolloutClient, script) -> None:
    """While posting: the batch is stopped, nobody could name it. While polling: it goes on, `cancel_async` stops it."""
    script.takes_batches.clear()

    async def run(result: AsyncBatchResult) -> list:
        return [item async for item in result]

    running = asyncio.ensure_future(run(client.run_batch_async(PAYLOADS, 5)))
    await eventually(lambda: script.submitting, "the batch is posted and not taken")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    script.takes_batches.set()
    await eventually(lambda: script.batches and all(b.cancelled for b in script.batches.values()), "it was stopped")

    result = client.run_batch_async(PAYLOADS, 5)
    assert not await result.cancel_async()
    running = asyncio.ensure_future(run(result))
    await eventually(lambda: script.waiting, "a poll waits")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    batch = script.batches[result.batch_id or ""]
    assert not batch.cancelled
    assert await result.cancel_async() and batch.cancelled
