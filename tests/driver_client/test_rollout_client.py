"""`RolloutClient` and its futures: agentcore-rl-toolkit's names and meanings, on the dispatcher's API."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import CancelledError
from urllib.parse import urlsplit

import pytest

from rollway_driver.client import ClientClosed, RolloutClient, RolloutFailed, collector
from rollway_wire.batch import AgentCoreRuntime, Limits, RolloutState
from rollway_wire.failures import FailureType
from rollway_wire.problems import Unavailable
from tests.driver_client.requests import IMPATIENT, QUICK, RUNTIME
from tests.driver_client.scripted_dispatcher import ScriptedBatch, ScriptedDispatcher
from tests.driver_client.severable_link import severable_link
from tests.kit.deadlines import eventually, until

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math"
SAVED_ERROR = {"status_code": 500, "stop_reason": "KeyError: 'answer'", "traceback": "Traceback …"}


def a_client(url: str, **settings) -> RolloutClient:
    given = {"s3_bucket": "bucket", "exp_id": "exp", "runtime": RUNTIME, "retry": QUICK, **settings}
    return RolloutClient(dispatcher_url=url, **given)


@pytest.fixture
def client(script: ScriptedDispatcher) -> Iterator[RolloutClient]:
    made = a_client(script.url)
    yield made
    made.close(cancel=True)


def _end_at_once(batch: ScriptedBatch) -> None:
    for group in batch.request.groups:
        batch.end(group.group_id)


# --- what is posted


def test_the_toolkits_constructor_makes_the_same_rollout(script: ScriptedDispatcher, monkeypatch) -> None:
    """ARN, bucket, experiment, endpoint, model and extra fields arrive where the toolkit puts them; overrides win."""
    monkeypatch.setenv("ROLLWAY_DISPATCHER_URL", script.url)
    script.on_batch = _end_at_once
    with RolloutClient(
        agent_runtime_arn=ARN, s3_bucket="bucket", exp_id="exp", max_retry_attempts=3, tps_limit=10,
        max_pool_connections=50, base_url="http://vllm:8000/v1", model_id="m", temperature=0.5,
        sampling_params={"top_p": 0.9},
    ) as client:  # fmt: skip
        future = client.invoke({"prompt": "2 + 2", "answer": "4"}, input_id="i1", temperature=0.9, model_id="other")
        assert future.result(timeout=60)["rewards"] == 1.0
        assert future.input_id == "i1"
    request = script.only_batch().request
    assert request.runtime == AgentCoreRuntime(agent_runtime_arn=ARN, tps_limit=10)
    assert (request.experiment_id, request.s3_bucket, request.model_id) == ("exp", "bucket", "other")
    assert request.rollout == {"temperature": 0.9, "base_url": "http://vllm:8000/v1"}
    assert request.sampling_params == {"top_p": 0.9}
    assert request.capture is None and not request.require_rewards
    assert request.limits.max_attempts == 3
    (group,) = request.groups
    assert (group.group_id, group.payload, group.n) == ("i1", {"prompt": "2 + 2", "answer": "4"}, 1)


def test_positional_arguments_are_the_toolkits(script: ScriptedDispatcher, monkeypatch) -> None:
    monkeypatch.setenv("ROLLWAY_DISPATCHER_URL", script.url)
    with RolloutClient(ARN, "bucket", "exp", 5, 25, 10, "http://vllm/v1", "m") as client:
        client.invoke({}).cancel()
    assert script.only_batch().request.rollout["base_url"] == "http://vllm/v1"


@pytest.mark.parametrize(
    ("settings", "overrides", "pool"),
    [
        ({}, {}, "default"),
        ({"capture_pool": "p1"}, {}, "p1"),
        ({"capture": False}, {}, None),
        ({"base_url": "http://x/v1"}, {}, None),
        ({}, {"base_url": "http://x/v1"}, None),
        ({"base_url": "http://x/v1"}, {"base_url": None}, "default"),
    ],
)
def test_model_calls_are_captured_unless_an_endpoint_is_named(
    script: ScriptedDispatcher, settings: dict, overrides: dict, pool: str | None
) -> None:
    script.on_batch = _end_at_once
    with a_client(script.url, **settings) as client:
        client.invoke({}, **overrides).result(60)
    capture = script.only_batch().request.capture
    assert (capture.pool if capture else None) == pool


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"dispatcher_url": None}, "ROLLWAY_DISPATCHER_URL"),
        ({"dispatcher_url": "host:1"}, "base_url"),
        ({"runtime": None}, "agent_runtime_arn"),
        ({"runtime": None, "agent_runtime_arn": "nonsense"}, "agent_runtime_arn"),
        ({"exp_id": "a/b"}, "experiment_id"),
        ({"capture": True, "base_url": "http://x/v1"}, "exclude each other"),
        ({"capture_pool": "no spaces"}, "pool"),
        ({"max_retry_attempts": -1}, "max_retry_attempts"),
        ({"max_pool_connections": 0}, "max_pool_connections"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(settings: dict, names: str) -> None:
    given = {"runtime": RUNTIME, "dispatcher_url": "http://127.0.0.1:1", **settings}
    with pytest.raises(ValueError, match=names):
        RolloutClient(**given)


def test_more_attempts_than_a_batch_allows_count_as_the_most(script: ScriptedDispatcher) -> None:
    """The toolkit sets no upper bound; ours is `Limits.max_attempts`'."""
    with a_client(script.url, max_retry_attempts=50) as client:
        client.invoke({}).cancel()
    most = script.only_batch().request.limits.max_attempts
    Limits(max_attempts=most)
    with pytest.raises(ValueError, match="max_attempts"):
        Limits(max_attempts=most + 1)


def test_what_cannot_be_sent_is_refused_before_posting(client: RolloutClient, script: ScriptedDispatcher) -> None:
    with pytest.raises(ValueError, match="session_id cannot be chosen"):
        client.invoke({}, session_id="s" * 36)
    with pytest.raises(ValueError, match="group_id"):
        client.invoke({}, input_id="a/b")
    with pytest.raises(ValueError, match="_rollout"):
        client.invoke({"_rollout": {}})
    with pytest.raises(ValueError, match="max_concurrent"):
        client.run_batch([{}], max_concurrent_sessions=0)
    with pytest.raises(ValueError, match="rollout_timeout_s"):
        client.run_batch([{}], max_concurrent_sessions=1, timeout=0)
    assert script.posts == 0


# --- futures


def test_grouped_results_as_in_the_toolkits_readme(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """Several rollouts of each input, started one by one, gathered by input; each is a session of its own."""
    script.on_batch = _end_at_once
    futures = [client.invoke(payload={"prompt": p}, input_id=p) for p in ("a", "b") for _ in range(4)]
    by_input = defaultdict(list)
    for future in futures:
        by_input[future.input_id].append(future.result(timeout=60))
    assert {k: len(v) for k, v in by_input.items()} == {"a": 4, "b": 4}
    assert len({future.session_id for future in futures}) == 8


def test_a_future_before_and_after_its_end(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """It knows nothing until the end, then result, trajectory, session, key and a duration that stands still."""
    future = client.invoke({})
    assert not future.done() and not future.cancelled
    assert future.trajectory is future.session_id is future.result_key is future.failure is None
    before = future.elapsed()
    script.only_batch().end(future.input_id, tokens=3)
    assert future.result(60)["status_code"] == 200
    assert future.done() and not future.cancelled and not future.cancel()
    assert future.elapsed() >= before and future.elapsed() == future.elapsed()
    assert future.trajectory is not None and future.trajectory.session_id == future.session_id
    assert future.result_key == "k.json"
    assert future.rollout is not None and future.rollout.rewards == [1.0]
    assert future.result() is future.result(0)


def test_an_agents_saved_error_is_the_result(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """As in the toolkit, the dict with status_code 500; `failure` says that it is one."""
    future = client.invoke({})
    script.only_batch().fail(future.input_id, FailureType.AGENT_ERROR, result=SAVED_ERROR)
    assert future.result(60) == SAVED_ERROR
    assert future.failure is not None and future.failure.type is FailureType.AGENT_ERROR


@pytest.mark.parametrize("kind", [k for k in FailureType if k is not FailureType.CANCELLED])
def test_a_failure_without_a_saved_error_is_raised(client: RolloutClient, script, kind: FailureType) -> None:
    """Never a made-up result: the failure itself is raised and carried."""
    future = client.invoke({})
    script.only_batch().fail(future.input_id, kind, message="because")
    with pytest.raises(RolloutFailed, match=f"{kind}: because") as caught:
        future.result(60)
    assert caught.value.failure.type is kind and caught.value.result is None


def test_a_result_that_may_not_train_is_no_success(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """A good-looking result whose capture is incomplete is raised as a failure, with the result beside it."""
    future = client.invoke({})
    script.only_batch().fail(future.input_id, FailureType.INCOMPLETE_CAPTURE, result={"rewards": 1.0})
    with pytest.raises(RolloutFailed) as caught:
        future.result(60)
    assert caught.value.result == {"rewards": 1.0}


def test_cancel_stops_the_rollout_once(client: RolloutClient, script: ScriptedDispatcher) -> None:
    future = client.invoke({})
    assert future.cancel() and script.only_batch().cancelled
    assert not future.cancel()
    assert future.cancelled and future.done()
    with pytest.raises(CancelledError):
        future.result()


def test_cancelled_by_someone_else_is_cancelled(client: RolloutClient, script: ScriptedDispatcher) -> None:
    future = client.invoke({})
    script.only_batch().end(future.input_id, state=RolloutState.CANCELLED)
    with pytest.raises(CancelledError):
        future.result(60)
    assert future.cancelled


def test_a_cancel_that_does_not_arrive_says_false(script: ScriptedDispatcher, caplog, monkeypatch) -> None:
    """The future is cancelled all the same, and the log says that the rollout may go on."""
    monkeypatch.setattr(collector, "STOP_DEADLINE_S", 0.5)
    client = a_client(script.url)
    future = client.invoke({})
    script.stop()
    with caplog.at_level(logging.WARNING):
        assert future.cancel() is False
    client.close()
    assert future.cancelled and "could not be cancelled" in caplog.text


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_timeout_cancels_the_rollout(client: RolloutClient, script: ScriptedDispatcher, timeout: float) -> None:
    future = client.invoke({})
    with pytest.raises(TimeoutError, match="not done after"):
        future.result(timeout)
    assert script.only_batch().cancelled and future.cancelled
    with pytest.raises(CancelledError):
        future.result(60)


def test_futures_outlive_a_restart(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """The dispatcher goes away with every rollout running and comes back: each future still gets its own result."""
    futures = [client.invoke({"i": i}, input_id=f"i{i}") for i in range(5)]
    until(lambda: script.waiting == 5, "every rollout is polled")
    script.stop()
    script.start()
    for batch in reversed(list(script.batches.values())):
        (group,) = batch.request.groups
        batch.end(group.group_id, result={"i": group.payload["i"]})
    assert [f.result(60)["i"] for f in futures] == list(range(5))


def test_past_the_long_polls_rollouts_take_turns(client: RolloutClient, script, monkeypatch) -> None:
    """More rollouts than sockets: none is held open, each is still heard."""
    monkeypatch.setattr(collector, "MAX_LONG_POLLS", 4)
    monkeypatch.setattr(collector, "WAIT_S", 0.5)
    futures = [client.invoke({}, input_id=f"i{i}") for i in range(20)]
    polls = script.polls
    until(lambda: script.polls > polls + 60 and script.waiting == 0, "short polls only")
    for batch in list(script.batches.values()):
        _end_at_once(batch)
    assert all(f.result(60)["rewards"] == 1.0 for f in futures)


def test_no_thread_per_future(client: RolloutClient, script: ScriptedDispatcher) -> None:
    before = set(threading.enumerate())
    futures = [client.invoke({}) for _ in range(20)]
    new = [t.name for t in threading.enumerate() if t not in before and not t.name.startswith("AnyIO")]
    assert new == ["rollway-collector"]
    for future in futures:
        future.cancel()


def test_many_threads_share_one_client(client: RolloutClient, script: ScriptedDispatcher) -> None:
    script.on_batch = _end_at_once
    results: list[float] = []
    threads = [
        threading.Thread(target=lambda: results.extend(client.invoke({}).result(60)["rewards"] for _ in range(5)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1.0] * 40


# --- async


async def test_futures_are_awaitable(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """`await future`, `result_async`, `done_async`, and gather over many, as in the toolkit's README."""
    script.on_batch = _end_at_once
    futures = await asyncio.gather(*[client.invoke_async({"i": i}) for i in range(10)])
    results = await asyncio.gather(*[f.result_async(timeout=60) for f in futures], *futures)
    assert [r["rewards"] for r in results] == [1.0] * 20
    assert await futures[0].done_async()
    assert not await futures[0].cancel_async()


async def test_async_cancel_and_timeout(client: RolloutClient, script: ScriptedDispatcher) -> None:
    first, second = [await client.invoke_async({}) for _ in range(2)]
    assert await first.cancel_async() and not await first.cancel_async()
    with pytest.raises(CancelledError):
        await first
    with pytest.raises(TimeoutError, match=r"not done after 0\.1 s"):
        await second.result_async(timeout=0.1)
    assert all(batch.cancelled for batch in script.batches.values())
    with pytest.raises(CancelledError):
        await second


async def test_cancelling_a_waiting_task_leaves_the_rollout(client: RolloutClient, script: ScriptedDispatcher) -> None:
    """At each await: the rollout goes on, and can be waited for again."""
    future = await client.invoke_async({})
    for steps in range(6):
        waiting = asyncio.ensure_future(future.result_async(60))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not future.cancelled and not script.only_batch().cancelled
    script.only_batch().end(future.input_id)
    assert (await future)["rewards"] == 1.0


async def test_cancelling_an_invocation_stops_what_it_started(client: RolloutClient, script) -> None:
    """Cancelled before, during and after the POST: no batch runs on that nobody holds a future of."""
    starting = asyncio.ensure_future(client.invoke_async({}))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    script.takes_batches.clear()
    starting = asyncio.ensure_future(client.invoke_async({}))
    await eventually(lambda: script.submitting, "it is being posted")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    script.takes_batches.set()
    for delay in (
        0.0,
        0.002,
        0.004,
        0.008,
        0.016,
        0.032,
    ):  # whatever it finds then: before, while or after it is answered
        posts = script.posts
        starting = asyncio.ensure_future(client.invoke_async({}))
        await eventually(lambda posts=posts: script.posts > posts or script.submitting, "it is posted")
        await asyncio.sleep(delay)
        starting.cancel()
        try:
            future = await starting
        except asyncio.CancelledError:
            continue
        await future.cancel_async()
    await eventually(lambda: len(script.batches) == 7, "the posts arrived")
    await eventually(lambda: all(b.cancelled for b in script.batches.values()), "each was stopped")


async def test_a_future_can_be_awaited_on_another_loop(client: RolloutClient, script: ScriptedDispatcher) -> None:
    future = await client.invoke_async({})

    async def wait() -> dict:
        return await future

    other = asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(wait()))
    script.only_batch().end(future.input_id)
    assert (await other)["rewards"] == (await future)["rewards"] == 1.0


# --- closing


def test_closing_cancels_nothing_and_says_so(script: ScriptedDispatcher, caplog) -> None:
    """Rollouts go on at the dispatcher, named in a warning; waiters get `ClientClosed`, as do later calls."""
    with caplog.at_level(logging.WARNING), a_client(script.url) as client:
        future = client.invoke({})
        waiter_saw: list[BaseException] = []

        def wait() -> None:
            try:
                future.result()
            except ClientClosed as e:
                waiter_saw.append(e)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: script.waiting, "the poll waits")
    waiter.join()
    assert len(waiter_saw) == 1 and not script.only_batch().cancelled
    assert script.only_batch().batch_id in caplog.text
    assert not future.cancel()
    with pytest.raises(ClientClosed):
        client.invoke({})
    with pytest.raises(ClientClosed):
        list(client.run_batch([{}], 1))
    client.close()


async def test_async_closing_can_cancel(script: ScriptedDispatcher) -> None:
    async with a_client(script.url) as client:
        futures = [await client.invoke_async({}) for _ in range(3)]
        await client.aclose(cancel=True)
    assert all(batch.cancelled for batch in script.batches.values())
    for future in futures:
        with pytest.raises((CancelledError, ClientClosed)):
            await future


def test_an_unused_client_closes(script: ScriptedDispatcher) -> None:
    a_client(script.url).close()


def test_an_unreachable_dispatcher_fails_the_invocation(script: ScriptedDispatcher) -> None:
    script.stop()
    with a_client(script.url, retry=IMPATIENT) as client:
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            client.invoke({})
        assert time.monotonic() - begun < 30


def test_a_dispatcher_lost_for_good_fails_the_future(script: ScriptedDispatcher) -> None:
    """Past the retry deadline the future raises rather than hangs."""
    with severable_link(urlsplit(script.url).port or 0) as link, a_client(link.url, retry=IMPATIENT) as client:
        future = client.invoke({})
        until(lambda: script.waiting, "the poll waits")
        link.sever()
        with pytest.raises(Unavailable):
            future.result(60)
