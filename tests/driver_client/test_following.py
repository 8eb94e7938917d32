"""Following a batch over one stream: each result once and in order, whatever breaks in between."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from rollway_driver.client import AsyncDispatcherClient, DamagedAnswer, DispatcherClient, RetryPolicy
from rollway_driver.client.streaming import Following, Form, StreamedRollout
from rollway_driver.client.transport import _Lines
from rollway_wire.batch import BatchRequest, Group, RolloutResult, RolloutState, Timings
from rollway_wire.problems import NotFound, Unavailable
from tests.driver_client.requests import QUICK
from tests.driver_client.severable_link import severable_link
from tests.driver_client.test_real_services import RUNTIME, Stack, stack
from tests.kit.deadlines import until

__all__ = ["stack"]
FORMS: list[Form] = ["ndjson", "events"]
ODD = "a\u2028b\x85c\r\nd: e\n\n"
"""What ends a line of text, but not of a stream."""


def _posted(stack: Stack, client: DispatcherClient, **limits: Any) -> str:
    """Four rollouts; the last waits for the file ``go``."""
    payloads = [stack.payload(reward=i, prompt=ODD) for i in range(3)]
    payloads.append(stack.payload(reward=3, wait_for=str(stack.folder / "go")))
    groups = [Group(group_id=f"g{i}", payload=p) for i, p in enumerate(payloads)]
    return client.submit(BatchRequest(groups=groups, runtime=RUNTIME)).batch_id


@pytest.mark.parametrize("form", FORMS)
def test_cut_connections_and_a_killed_dispatcher_cost_nothing(stack: Stack, form: Form) -> None:
    """Cut after each result, then SIGKILL while it waits: every result once, tokens and all, in one iteration."""
    assert stack.dispatcher is not None
    port = urlsplit(stack.dispatcher.url).port or 0
    with severable_link(port) as link, DispatcherClient(link.url, retry=QUICK) as client:
        batch_id = _posted(stack, client)
        seen: list[StreamedRollout] = []
        for found in client.follow(batch_id, form=form):
            seen.append(found)
            link.sever()
            if len(seen) == 3:
                stack.dispatcher.kill()
                (stack.folder / "go").touch()
                stack.start_dispatcher()
        assert [f.cursor for f in seen] == [1, 2, 3, 4]
        assert sorted(f.rollout.rewards or [] for f in seen) == [[0], [1], [2], [3]]
        assert all(f.trajectory and f.trajectory.session_id == f.rollout.session_id for f in seen)
        assert list(client.follow(batch_id, cursor=4, form=form)) == []
        (last,) = client.follow(batch_id, cursor=3, form=form, trajectories=False)
        assert (last.rollout, last.trajectory) == (seen[3].rollout, None)
        with pytest.raises(NotFound):
            list(client.follow("unknown", form=form))


def test_following_from_an_event_loop(stack: Stack) -> None:
    """Two at once on one loop; one is left early and its connection closed, the other sees everything."""
    assert stack.dispatcher is not None
    url = stack.dispatcher.url
    with DispatcherClient(url, retry=QUICK) as client:
        batch_id = _posted(stack, client)

    async def run() -> list[int]:
        async with AsyncDispatcherClient(url, retry=QUICK) as client:

            async def first() -> int:
                async for found in client.follow(batch_id):
                    return found.cursor
                raise AssertionError("no result")

            async def everything() -> list[int]:
                return [found.cursor async for found in client.follow(batch_id, form="events")]

            whole = asyncio.create_task(everything())
            assert await first() == 1
            (stack.folder / "go").touch()
            return await whole

    assert asyncio.run(run()) == [1, 2, 3, 4]


def test_a_table_of_results_and_a_progress_bar(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert stack.dispatcher is not None
    with DispatcherClient(stack.dispatcher.url, retry=QUICK) as client:
        batch_id = _posted(stack, client)
        (stack.folder / "go").touch()
        followed = list(client.follow(batch_id, progress=True))
        page = client.arrow_page(batch_id)
        part = client.arrow_page(batch_id, cursor=1, limit=2)
    assert (page.cursor, page.finished, part.cursor, part.finished) == (4, True, 3, False)
    assert page.table["rollout_id"].to_pylist() == [f.rollout.rollout_id for f in followed]
    assert page.table["rewards"].to_pylist() == [f.rollout.rewards for f in followed]
    assert page.table["sequences"].to_pylist()[0][0]["token_ids"]
    drawn = capsys.readouterr().err
    assert "4/4" in drawn and "reward=1.500" in drawn and "failed=0" in drawn
    with stack.client() as rollouts:
        payloads = [stack.payload(), stack.payload(act="raise")]
        assert len(list(rollouts.run_batch(payloads, max_concurrent_sessions=2, progress=True))) == 2
    drawn = capsys.readouterr().err
    assert "2/2" in drawn and "failed=1" in drawn


def _line(cursor: int) -> bytes:
    rollout = RolloutResult(
        rollout_id="b/g/0", batch_id="b", group_id="g", index=0, state=RolloutState.SUCCEEDED, attempt=1,
        session_id="s", failure=None, rewards=[1.0], result={}, timings=Timings(),
    ).model_dump(mode="json")  # fmt: skip
    return orjson.dumps({"cursor": cursor, "rollout": rollout, "trajectory": None})


def test_what_a_line_may_be() -> None:
    """Signs of life say nothing; a problem is raised; what cannot be read is damage; only the end ends it."""
    following = Following("b", 0, True, "ndjson", QUICK)
    assert list(following.take(b"")) == []
    assert [f.cursor for f in following.take(_line(7))] == [7]
    assert following.call().params["cursor"] == 7 and not following.ended
    with pytest.raises(Unavailable, match="closing"):
        list(following.take(b'{"problem": {"status": 503, "detail": "closing"}}'))
    for damaged in (b"{", b"[]", b'{"cursor": 8}', _line(8).replace(b'"state"', b'"stat"'), b"\xff"):
        with pytest.raises(DamagedAnswer):
            list(following.take(damaged))
    assert following.cursor == 7
    assert list(following.take(b'{"cursor": 8, "finished": true}')) == [] and following.ended


def test_a_stream_that_gives_nothing_is_given_up_and_one_that_goes_on_is_not() -> None:
    """The patience begins anew with each result."""
    following = Following("b", 0, True, "ndjson", RetryPolicy(deadline_s=0.0))
    with pytest.raises(Unavailable, match="cut"):
        following.failed(None)
    following = Following("b", 0, True, "ndjson", RetryPolicy(deadline_s=1.0, first_wait_s=0.5, max_wait_s=0.5))
    for cursor in range(20):
        assert 0 < following.failed(None) <= 0.5
        list(following.take(_line(cursor)))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_lines_are_cut_at_line_feeds_alone(size: int) -> None:
    said = [ODD.replace("\n", " ").encode(), b"", b"x" * 2000, b"last"]
    raw = b"\n".join(said) + b"\nunfinished"
    lines = _Lines()
    assert [line for i in range(0, len(raw), size) for line in lines.of(raw[i : i + size])] == said


def test_waiting_is_over_when_the_batch_is(stack: Stack) -> None:
    """A follower that waits is woken by a cancellation and then ends."""
    assert stack.dispatcher is not None
    with DispatcherClient(stack.dispatcher.url, retry=QUICK) as client:
        batch_id = _posted(stack, client)
        until(lambda: client.status(batch_id).counts.get(RolloutState.SUCCEEDED) == 3, "three are done", 60)
        states = []
        for found in client.follow(batch_id):
            states.append(found.rollout.state)
            if len(states) == 3:
                client.cancel(batch_id)
        assert states[3] is RolloutState.CANCELLED
