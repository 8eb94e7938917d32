"""One ask, one sampled answer: retries get the answer of the call they repeat; a second ask gets a second answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.shapes import events_of
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
SAYS = {"x-stainless-retry-count": "1"}


@pytest.fixture
async def gateway(engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    """Waits for retries longer than any test takes."""
    async with running_gateway(retry_grace_s=3600.0) as running:
        await running.add(engine)
        yield running


def _ask(
    gateway: RunningGateway, ticket: dict[str, Any], *, stream: bool = False, headers: dict[str, str] | None = None
) -> asyncio.Task[httpx.Response]:
    body = {"model": "m", "messages": HI, "stream": stream}
    url = ticket["base_url"] + "/chat/completions"
    return asyncio.create_task(gateway.http.post(url, json=body, headers=headers))


async def _leave(asking: asyncio.Task[httpx.Response]) -> None:
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def _said(answer: httpx.Response, stream: bool) -> str:
    if not stream:
        return str(answer.json()["choices"][0]["message"]["content"])
    chunks = [e for e in events_of(answer.text) if isinstance(e, dict)]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


async def _waiting(gateway: RunningGateway, ticket: dict[str, Any]) -> None:
    """The gateway knows that the client left."""
    session = gateway.inside.store.get(ticket["session_id"])
    await eventually(
        lambda: session.originals.find(("chat", _body(session)), said=False), "the call waits for its retry"
    )


def _body(session: Any) -> bytes:
    return next(iter(session.originals._calls)).asked[1]


@pytest.mark.parametrize("headers", [{}, SAYS], ids=["silent", "said"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_after_a_disconnect_joins_the_generation(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool, headers: dict[str, str]
) -> None:
    """Also from its first byte, and with no second generation."""
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("the one", hold=hold), Reply("another"))
    asking = _ask(gateway, ticket, stream=stream)
    await eventually(lambda: engine.active, "the call reached the engine")
    await _leave(asking)
    await _waiting(gateway, ticket)
    again = _ask(gateway, ticket, stream=stream, headers=headers)
    session = gateway.inside.store.get(ticket["session_id"])
    await eventually(lambda: session.rejoined_calls, "the retry joined")
    hold.set()
    assert _said(await again, stream) == "the one"
    made = await gateway.seal(ticket["session_id"])
    assert (len(engine.requests), engine.cancelled) == (1, 0)
    assert ([t.incomplete for t in made.turns], made.incomplete) == ([None], None)
    assert made.ledger.trained == made.ledger.sampled
    assert made.metadata["rejoined_calls"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_nobody_took_waits_for_its_retry(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("the one", hold=hold), Reply("another"))
    asking = _ask(gateway, ticket, stream=stream)
    await eventually(lambda: engine.active, "the call reached the engine")
    await _leave(asking)
    await _waiting(gateway, ticket)
    hold.set()
    await eventually(lambda: not engine.active, "the engine has answered")
    left = await gateway.settled(ticket["session_id"])
    assert [t.incomplete for t in left.turns] == ["the answer did not reach the agent"]
    assert left.ledger.orphaned == left.ledger.sampled > 0
    assert _said(await _ask(gateway, ticket, stream=stream), stream) == "the one"
    made = await gateway.seal(ticket["session_id"])
    assert (len(engine.requests), made.ledger.trained) == (1, made.ledger.sampled)


async def test_an_answer_given_to_a_retry_is_taken_before_its_agent_can_do_anything(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """An agent that is done with it may be sealed at once: what it got must not be orphaned."""
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("the one", hold=hold))
    asking = _ask(gateway, ticket)
    await eventually(lambda: engine.active, "the call reached the engine")
    await _leave(asking)
    await _waiting(gateway, ticket)
    hold.set()
    session = gateway.inside.store.get(ticket["session_id"])
    await eventually(lambda: session.records and not session.visits, "the call goes on to its end")
    original = session.originals.find(("chat", _body(session)), said=False)
    assert original is not None and not session.records[0].delivered
    at_the_end: list[bool] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            asyncio.get_running_loop().call_soon(lambda: at_the_end.append(session.records[0].delivered))

    async def receive() -> Any:
        await asyncio.Event().wait()

    await original.rejoin(receive, send)
    assert at_the_end == [True]


async def test_a_delivered_answer_is_given_again_only_to_a_client_that_says_it_retries(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket = await gateway.open()
    engine.script(Reply("first"), Reply("second"))
    assert _said(await _ask(gateway, ticket), False) == "first"
    assert _said(await _ask(gateway, ticket, headers=SAYS), False) == "first"
    assert _said(await _ask(gateway, ticket), False) == "second"
    made = await gateway.seal(ticket["session_id"])
    assert [len(made.turns), len(engine.requests)] == [2, 2]
    assert made.ledger.trained == made.ledger.sampled


async def test_equal_requests_at_once_are_sampled_each(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(*[Reply(f"sample {k}", hold=hold) for k in range(3)])
    asked = [_ask(gateway, ticket) for _ in range(3)]
    await eventually(lambda: engine.active == 3, "three generations")
    hold.set()
    assert {_said(await a, False) for a in asked} == {"sample 0", "sample 1", "sample 2"}


async def test_an_sdk_that_runs_out_of_patience_gets_the_answer_on_its_retry(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("slow", hold=hold), Reply("another"))
    async with gateway.openai(ticket, max_retries=50, timeout=1.0) as client:
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HI))
        session = gateway.inside.store.get(ticket["session_id"])
        await eventually(lambda: session.rejoined_calls, "the SDK asked again")
        hold.set()
        assert (await asking).choices[0].message.content == "slow"
    assert len(engine.requests) == 1


async def test_without_a_retry_the_generation_is_cancelled_and_recorded(engine: ScriptedEngine) -> None:
    async with running_gateway(retry_grace_s=0.2) as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        engine.script(Reply("never read", hold=asyncio.Event()))
        asking = _ask(gateway, ticket, stream=True)
        await eventually(lambda: engine.active, "the call reached the engine")
        await _leave(asking)
        made = await gateway.settled(ticket["session_id"])
        assert [t.incomplete for t in made.turns] == ["client disconnected"]
        await eventually(lambda: engine.cancelled == 1, "the engine saw it")


async def test_asking_again_too_late_makes_the_first_answer_a_duplicate(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("unread", hold=hold), Reply("read"))
    asking = _ask(gateway, ticket)
    await eventually(lambda: engine.active, "the call reached the engine")
    session = gateway.inside.store.get(ticket["session_id"])
    await _leave(asking)
    await _waiting(gateway, ticket)
    (original,) = session.originals._calls
    original._delivery._grace_s = 0.05  # type: ignore[attr-defined]  # from the answer's end on: the call may take long
    hold.set()
    await eventually(lambda: session.unread, "the answer is given up")
    assert _said(await _ask(gateway, ticket), False) == "read"
    made = await gateway.seal(ticket["session_id"])
    assert (made.ledger.duplicate, made.ledger.trained) == (len("unread") + 1, len("read") + 1)
    assert (len(made.sequences), made.incomplete) == (1, None)


async def test_retries_join_through_sealing_with_an_error(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """A sealed session answers nobody: the retry in progress is told, and the generation is cancelled."""
    ticket = await gateway.open()
    engine.script(Reply("never", hold=asyncio.Event()))
    asking = _ask(gateway, ticket)
    await eventually(lambda: engine.active, "the call reached the engine")
    await _leave(asking)
    await _waiting(gateway, ticket)
    again = _ask(gateway, ticket)
    session = gateway.inside.store.get(ticket["session_id"])
    await eventually(lambda: session.rejoined_calls, "the retry joined")
    await gateway.seal(ticket["session_id"])
    assert (await again).status_code == 410
    async with gateway.openai(ticket) as client:
        with pytest.raises(openai.APIStatusError, match="sealed"):
            await client.chat.completions.create(model="m", messages=HI)
