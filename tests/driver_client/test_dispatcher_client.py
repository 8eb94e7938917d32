"""The low-level client against real sockets: each result once, whatever the network does."""

from __future__ import annotations

import asyncio
import threading
import time
from urllib.parse import urlsplit

import pytest

from rollway_driver.client import AsyncDispatcherClient, DamagedAnswer, DispatcherClient, RetryPolicy
from rollway_driver.client.retry import Attempts
from rollway_wire.problems import BadGateway, BadRequest, Conflict, GatewayTimeout, NotFound, Unavailable
from tests.driver_client.requests import IMPATIENT, QUICK, a_request
from tests.driver_client.scripted_dispatcher import ScriptedDispatcher, cut_off, torn, unwell, web_page
from tests.driver_client.severable_link import severable_link
from tests.kit.deadlines import eventually, until

LOST = {"502": unwell(502), "503": unwell(503), "504": unwell(504), "torn": torn, "cut_off": cut_off}
"""Answers that do not arrive as they were sent."""


def _end_all(script: ScriptedDispatcher, tokens: int = 0) -> None:
    def end(batch):
        for group in batch.request.groups:
            batch.end(group.group_id, tokens=tokens)

    script.on_batch = end


def test_each_result_comes_once_in_the_order_of_finishing(script: ScriptedDispatcher) -> None:
    """Pages of one, finished out of order: the stream gives each once, in that order."""
    with DispatcherClient(script.url, retry=QUICK) as client:
        batch_id = client.submit(a_request(3)).batch_id
        for group in ("g2", "g0", "g1"):
            script.batches[batch_id].end(group)
        assert [f.rollout.group_id for f in client.stream(batch_id, limit=1)] == ["g2", "g0", "g1"]
        assert client.status(batch_id).counts == {"succeeded": 3}
        assert [b.batch_id for b in client.batches()] == [batch_id]
        assert {v.group_id for v in client.rollouts(batch_id)} == {"g0", "g1", "g2"}
        client.health()


@pytest.mark.parametrize("packed", [True, False])
def test_trajectories_are_the_same_packed_and_as_json(script: ScriptedDispatcher, packed: bool) -> None:
    """Both encodings give equal typed trajectories; a rollout without tokens has none."""
    _end_all(script, tokens=5)
    with DispatcherClient(script.url, retry=QUICK) as client:
        batch_id = client.submit(a_request(1)).batch_id
        ((rollout, trajectory),) = client.results(batch_id, packed=packed).results
        assert trajectory is not None and trajectory.session_id == rollout.session_id
        assert trajectory.sequences[0].token_ids.tolist() == [1, 2, 10, 11, 12, 13, 14]
        assert trajectory.sequences[0].logprobs.typecode == "f"
        assert trajectory.ledger.trained == 5


def test_a_long_poll_wakes_when_something_finishes(script: ScriptedDispatcher) -> None:
    """A poll of 60 s returns as soon as a rollout ends, not at the end of its wait."""
    with DispatcherClient(script.url, retry=QUICK) as client:
        batch = script.batches[client.submit(a_request(2)).batch_id]
        ender = threading.Thread(target=lambda: (until(lambda: script.waiting, "a poll waits"), batch.end("g0")))
        ender.start()
        page = client.results(batch.batch_id, wait_s=60)
        ender.join()
        assert [f.rollout.group_id for f in page.results] == ["g0"] and not page.finished


@pytest.mark.parametrize("fault", list(LOST.values()), ids=list(LOST))
def test_a_repeated_post_starts_one_batch(script: ScriptedDispatcher, fault) -> None:
    """The answer to a POST that did its work is lost: the POST repeated finds the batch it made."""
    script.faults["submit"].append(fault)
    with DispatcherClient(script.url, retry=QUICK) as client:
        status = client.submit(a_request())
    assert list(script.batches) == [status.batch_id]
    assert script.posts == 2


def test_two_submits_are_two_batches_and_a_key_makes_them_one(script: ScriptedDispatcher) -> None:
    with DispatcherClient(script.url, retry=QUICK) as client:
        assert client.submit(a_request()).batch_id != client.submit(a_request()).batch_id
        first = client.submit(a_request(), idempotency_key="k")
        assert client.submit(a_request(), idempotency_key="k").batch_id == first.batch_id
        with pytest.raises(Conflict, match="another request"):
            client.submit(a_request(5), idempotency_key="k")


@pytest.mark.parametrize("fault", [*LOST.values(), unwell(429)], ids=[*LOST, "429"])
def test_a_faulty_page_is_asked_for_again(script: ScriptedDispatcher, fault) -> None:
    """A page lost or damaged on the way is read again from the same cursor: nothing lost, nothing doubled."""
    _end_all(script, tokens=3)
    script.faults["results"].extend([fault, fault, fault])
    with DispatcherClient(script.url, retry=QUICK) as client:
        found = list(client.stream(client.submit(a_request(4)).batch_id, limit=2))
    assert [f.rollout.group_id for f in found] == ["g0", "g1", "g2", "g3"]


def test_retry_after_is_waited_for(script: ScriptedDispatcher) -> None:
    """A 503 that says when to come back is obeyed even where the backoff is shorter."""
    script.faults["submit"].append(unwell(503, retry_after_s=1))
    with DispatcherClient(script.url, retry=QUICK) as client:
        begun = time.monotonic()
        client.submit(a_request())
        assert time.monotonic() - begun >= 1.0


def test_a_service_that_is_not_a_dispatcher_is_named_soon(script: ScriptedDispatcher) -> None:
    """A page of HTML fails after a few attempts, not at the deadline, and the error shows the URL."""
    script.faults["results"].extend([web_page] * 10)
    with DispatcherClient(script.url, retry=RetryPolicy(first_wait_s=0.01)) as client:
        batch_id = client.submit(a_request()).batch_id
        with pytest.raises(DamagedAnswer, match=f"{script.url}/v1/batches/{batch_id}/results.*cannot be read"):
            client.results(batch_id, wait_s=0)
    assert len(script.faults["results"]) == 6


def test_errors_of_the_request_are_raised_at_once(script: ScriptedDispatcher) -> None:
    """4xx problems come as their class without a second attempt; what has no JSON form never leaves."""
    with DispatcherClient(script.url, retry=RetryPolicy()) as client:
        with pytest.raises(NotFound, match="no batch nope"):
            client.status("nope")
        request = a_request()
        odd = request.model_copy(update={"sampling_params": {"temperature": object()}})
        with pytest.raises(BadRequest, match="cannot be written as JSON"):
            client.submit(odd)
    assert script.posts == 0


def test_an_unreachable_dispatcher_is_named_after_the_deadline(script: ScriptedDispatcher) -> None:
    script.stop()
    with DispatcherClient(script.url, retry=IMPATIENT) as client, pytest.raises(Unavailable, match="cannot be reached"):
        client.health()
    policy = RetryPolicy(deadline_s=0.5, first_wait_s=0.05, max_wait_s=0.1)
    with DispatcherClient(script.url, retry=policy) as client:
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            client.health()
        assert 0.3 <= time.monotonic() - begun < 60, "not the default deadline of two minutes"


def test_an_answer_that_never_comes_is_a_gateway_timeout(script: ScriptedDispatcher, monkeypatch) -> None:
    answers = threading.Event()
    with DispatcherClient(script.url, retry=IMPATIENT) as client:
        batch_id = client.submit(a_request()).batch_id
        script.faults["results"].append(lambda answer: (answers.wait(), answer)[1])
        monkeypatch.setattr("rollway_driver.client.dispatcher_calls.ANSWER_TIMEOUT_S", 0.2)
        try:
            with pytest.raises(GatewayTimeout, match="no answer in time"):
                client.results(batch_id, wait_s=0)
        finally:
            answers.set()


def test_a_redirect_is_not_followed() -> None:
    """A base URL that redirects is a wrong setting: following it would turn POST into GET."""
    from rollway_driver.client.call import Answer, read_answer
    from rollway_driver.client.dispatcher_calls import health

    with pytest.raises(BadGateway, match="base URL"):
        read_answer(health(), Answer(301, "text/html", b""), "GET http://x/health")


@pytest.mark.parametrize("url", ["localhost:8700", "ftp://x", "", "http://"])
def test_a_wrong_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        DispatcherClient(url)
    with pytest.raises(ValueError, match="base_url"):
        AsyncDispatcherClient(url)


def test_a_stream_survives_a_restart_mid_batch(script: ScriptedDispatcher) -> None:
    """The dispatcher goes away during a poll and comes back: the stream goes on where it was."""
    with DispatcherClient(script.url, retry=QUICK) as client:
        batch = script.batches[client.submit(a_request(3)).batch_id]
        batch.end("g1")

        def restart() -> None:
            until(lambda: script.waiting, "a poll waits")
            script.stop()
            batch.end("g0")
            script.start()
            batch.end("g2")

        restarter = threading.Thread(target=restart)
        stream = client.stream(batch.batch_id)
        first = next(stream)
        restarter.start()
        rest = list(stream)
        restarter.join()
    assert [f.rollout.group_id for f in [first, *rest]] == ["g1", "g0", "g2"]


async def test_connections_reset_mid_poll_lose_nothing(script: ScriptedDispatcher) -> None:
    """Every connection is reset while polls wait, again and again: each result still comes once."""
    with severable_link(urlsplit(script.url).port or 0) as link:
        async with AsyncDispatcherClient(link.url, retry=QUICK) as client:
            batch = script.batches[(await client.submit(a_request(6))).batch_id]
            found: list[str] = []

            async def read() -> None:
                async for finished in client.stream(batch.batch_id):
                    found.append(finished.rollout.group_id)

            reading = asyncio.create_task(read())
            for i in range(6):
                await eventually(lambda: script.waiting, "a poll waits")
                await asyncio.to_thread(link.sever)
                batch.end(f"g{i}")
                await eventually(lambda i=i: len(found) == i + 1, "the result arrived")
            await reading
        assert found == [f"g{i}" for i in range(6)]


async def test_async_client_reads_what_the_sync_one_reads(script: ScriptedDispatcher) -> None:
    """Also a page too large to decode on the loop."""
    _end_all(script, tokens=20_000)
    async with AsyncDispatcherClient(script.url, retry=QUICK) as client:
        batch_id = (await client.submit(a_request(2))).batch_id
        found = [f async for f in client.stream(batch_id)]
        assert [f.rollout.group_id for f in found] == ["g0", "g1"]
        assert [f.trajectory.ledger.trained for f in found if f.trajectory] == [20_000, 20_000]
        assert (await client.status(batch_id)).state == "finished"
        assert len(await client.batches()) == 1
        assert len(await client.rollouts(batch_id)) == 2
        await client.health()


async def test_a_cancelled_poll_closes_its_connection(script: ScriptedDispatcher) -> None:
    """Cancelling at each await of a call leaves the client usable and the batch alone."""
    async with AsyncDispatcherClient(script.url, retry=QUICK) as client:
        batch_id = (await client.submit(a_request(1))).batch_id
        for steps in range(12):
            polling = asyncio.create_task(client.results(batch_id, wait_s=30))
            for _ in range(steps):
                await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
        polling = asyncio.create_task(client.results(batch_id, wait_s=30))
        await eventually(lambda: script.waiting, "a poll waits")
        script.batches[batch_id].end("g0")
        assert (await polling).finished
        assert not script.batches[batch_id].cancelled


async def test_a_cancel_while_waiting_to_retry_ends_at_once(script: ScriptedDispatcher, monkeypatch) -> None:
    failed, after = asyncio.Event(), Attempts.after
    monkeypatch.setattr(Attempts, "after", lambda self, error: (failed.set(), after(self, error))[1])
    script.stop()
    async with AsyncDispatcherClient(script.url, retry=RetryPolicy(first_wait_s=60, max_wait_s=60)) as client:
        asking = asyncio.create_task(client.health())
        await failed.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_stream_out_of_time_says_so_and_leaves_the_batch(script: ScriptedDispatcher) -> None:
    async with AsyncDispatcherClient(script.url, retry=QUICK) as client:
        batch_id = (await client.submit(a_request(1))).batch_id
        with pytest.raises(TimeoutError, match=r"not finished after 0\.3 s"):
            async for _ in client.stream(batch_id, timeout=0.3):
                pass
        assert not script.batches[batch_id].cancelled
        assert (await client.cancel(batch_id)).state == "finished"


def test_a_sync_stream_out_of_time_says_so_too(script: ScriptedDispatcher) -> None:
    with DispatcherClient(script.url, retry=QUICK) as client:
        batch_id = client.submit(a_request(1)).batch_id
        with pytest.raises(TimeoutError):
            list(client.stream(batch_id, timeout=0.3))
        client.cancel(batch_id)
        assert [f.rollout.state for f in client.stream(batch_id)] == ["cancelled"]


def test_one_sync_client_serves_many_threads(script: ScriptedDispatcher) -> None:
    _end_all(script)
    with DispatcherClient(script.url, retry=QUICK) as client:
        counts: list[int] = []

        def run() -> None:
            counts.append(len(list(client.stream(client.submit(a_request(4)).batch_id, limit=1))))

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [4] * 8
    assert len(script.batches) == 8
