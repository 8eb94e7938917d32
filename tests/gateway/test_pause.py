"""A weight update in the middle of turns: calls wait, and what the engine cuts goes on in the same turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.shapes import events_of
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import EOS, FIRST_BYTE, Reply, ScriptedEngine, templated_ids, text_ids
from tests.kit.scripted_model import write_model

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
TEXT = "/v1/completions"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as running:
        yield running


def _ask(
    gateway: RunningGateway, ticket: dict[str, Any], messages: list[Any] = HI, **asked: Any
) -> asyncio.Task[httpx.Response]:
    body = {"model": "m", "messages": messages, **asked}
    return asyncio.create_task(gateway.http.post(ticket["base_url"] + "/chat/completions", json=body))


async def _pause(gateway: RunningGateway, **how: Any) -> dict[str, Any]:
    answer = await gateway.http.post("/v1/pools/default/pause", json=how)
    assert answer.status_code == 200, answer.text
    state: dict[str, Any] = answer.json()
    return state


async def _open(gateway: RunningGateway, version: int) -> dict[str, Any]:
    answer = await gateway.http.post("/v1/pools/default/open", json={"policy_version": version})
    state: dict[str, Any] = answer.json()
    return state


def _message(answer: httpx.Response, stream: bool) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    if not stream:
        choice = answer.json()["choices"][0]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}
    out: dict[str, Any] = {"content": "", "tool_calls": []}
    for event in events_of(answer.text)[:-1]:
        for choice in event["choices"]:
            out["content"] += choice["delta"].get("content") or ""
            out["tool_calls"] += [c for c in choice["delta"].get("tool_calls") or () if "id" in c]
            out["finish_reason"] = choice["finish_reason"]
    return out


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_the_engine_cuts_goes_on_from_its_tokens(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    """In the first turn, which is a chat, and in one of ids; more than once; the agent sees one answer."""
    engine.script(
        Reply("one ", finish_reason="abort"), Reply("whole ", finish_reason="abort"), Reply("answer – 👍"),
        Reply("an", finish_reason="abort"), Reply("other"),
    )  # fmt: skip
    ticket = await gateway.open()
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    asked = {"stream": stream, "max_tokens": 100, "logprobs": True, **usage}
    first = await _ask(gateway, ticket, **asked)
    said = _message(first, stream)
    assert (said["content"], said["finish_reason"]) == ("one whole answer – 👍", "stop")
    sampled = [*text_ids("one whole answer – 👍"), EOS]
    prompt = templated_ids(HI)
    assert [body["prompt"] for path, body in engine.requests if path == TEXT] == [
        prompt + text_ids("one "), prompt + text_ids("one whole "),
    ]  # fmt: skip
    assert [body["max_tokens"] for _, body in engine.requests] == [100, 96, 90]
    last = events_of(first.text)[-2] if stream else first.json()
    assert last["usage"]["completion_tokens"] == len(sampled)
    assert last["usage"]["prompt_tokens"] == len(prompt)
    if not stream:
        assert len(first.json()["choices"][0]["logprobs"]["content"]) == len(sampled)
    more = [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "b"}]
    assert _message(await _ask(gateway, ticket, [*HI, *more], stream=stream), stream)["content"] == "another"
    made = await gateway.seal(ticket["session_id"])
    assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1)
    assert [t.incomplete for t in made.turns] == [None, None]
    assert made.turns[0].completion_token_ids.tolist() == sampled
    assert made.ledger.trained == made.ledger.sampled == len(sampled) + len("another") + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_call_cut_in_two_is_one_tool_call(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script(
        Reply("ok"), Reply('Hm. <tool_call>{"name":"add","argu', finish_reason="abort"),
        Reply('ments":{"a":1}}</tool_call>'),
    )  # fmt: skip
    ticket = await gateway.open()
    asked = {"stream": stream, "tools": TOOLS}
    assert _message(await _ask(gateway, ticket, **asked), stream)["content"] == "ok"
    messages = [*HI, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "b"}]
    said = _message(await _ask(gateway, ticket, messages, **asked), stream)
    assert (said["content"], said["finish_reason"]) == ("Hm. ", "tool_calls")
    assert [c["function"]["name"] for c in said["tool_calls"]] == ["add"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_paused_pool_cuts_holds_and_goes_on_with_the_next_version(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    """A call in flight and a new one both wait until the pool opens; the turn that was cut has both versions."""
    await _open(gateway, 7)
    tickets, hold = [await gateway.open() for _ in range(2)], asyncio.Event()
    engine.script(Reply("first part", hold=hold))
    engine.answer = lambda body: Reply("rest") if "prompt" in body else Reply("new")
    cut = _ask(gateway, tickets[0], stream=stream)
    await eventually(lambda: engine.on_hold, "a generation on hold")
    state = await _pause(gateway, in_flight="abort")
    assert (state["gate"], state["in_flight"], state["held"]) == ("paused", 0, 1)
    new = _ask(gateway, tickets[1], stream=stream)

    async def held() -> bool:
        return bool((await gateway.http.get("/v1/pools/default")).json()["held"] == 2)

    await eventually(held, "two calls held")
    assert len(engine.requests) == 1
    state = await _open(gateway, 8)
    assert (state["gate"], state["held"]) == ("open", 0)
    begun = text_ids("first part")[: 2 if stream else None]
    text = bytes(i - FIRST_BYTE for i in begun).decode() + "rest"
    assert [_message(await call, stream)["content"] for call in (cut, new)] == [text, "new"]
    (turn,) = (await gateway.seal(tickets[0]["session_id"])).turns
    assert (turn.policy_version_start, turn.policy_version_end, turn.incomplete) == (7, 8, None)
    assert turn.completion_token_ids.tolist() == [*text_ids(text), EOS]
    (turn,) = (await gateway.seal(tickets[1]["session_id"])).turns
    assert (turn.policy_version_start, turn.policy_version_end) == (8, 8)


async def test_a_pool_may_refuse_new_calls_and_drain(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("drained", hold=hold))
    asking = _ask(gateway, ticket)
    await eventually(lambda: engine.active, "a call in flight")
    state = await _pause(gateway, new_calls="refuse", timeout_s=0.1)
    assert (state["gate"], state["in_flight"]) == ("paused", 1)
    refused = await _ask(gateway, ticket)
    assert (refused.status_code, "paused" in refused.text, "retry-after" in refused.headers) == (503, True, True)
    hold.set()
    assert _message(await asking, False)["content"] == "drained"
    await _open(gateway, 1)
    assert (await _ask(gateway, ticket)).status_code == 200


async def test_held_calls_end_with_the_fence_and_with_their_clients(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    await _pause(gateway)
    asked = [_ask(gateway, await gateway.open()) for _ in range(2)]
    pool = gateway.inside.pools["default"]

    def held() -> int:
        return gateway.inside.pool_state(pool).held

    await eventually(lambda: held() == 2, "two calls held")
    asked[0].cancel()
    await eventually(lambda: held() == 1, "one left with its client")
    assert (await gateway.http.post("/v1/pools/default/fence", json={})).json()["in_flight"] == 0
    assert (await asked[1]).status_code == 503
    assert engine.requests == []


@pytest.mark.parametrize("why", ["mirror mode", "a grammar", "several choices"])
async def test_what_cannot_go_on_is_told_to_try_again(engine: ScriptedEngine, why: str) -> None:
    asked: dict[str, Any] = {
        "a grammar": {"response_format": {"type": "json_object"}}, "several choices": {"n": 2},
    }.get(why, {})  # fmt: skip
    async with running_gateway(mode="mirror" if why == "mirror mode" else "exact") as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        engine.script(Reply("part", finish_reason="abort"), Reply("whole"))
        answer = await _ask(gateway, ticket, **asked)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        made = await gateway.settled(ticket["session_id"])
        assert {t.incomplete for t in made.turns} == {"the engine aborted the generation"}
        assert (made.incomplete, made.ledger.trained) == (None, 0)


async def test_an_engine_that_can_only_be_drained_is_drained(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.aborts = False
    engine.script(Reply("slow", hold=hold))
    asking = _ask(gateway, ticket)
    await eventually(lambda: engine.active, "a call in flight")
    pausing = asyncio.create_task(_pause(gateway, in_flight="abort", timeout_s=30))
    await eventually(lambda: gateway.inside.pools["default"].gate == "paused", "the gate is shut")
    hold.set()
    assert _message(await asking, False)["content"] == "slow"
    assert (await pausing)["in_flight"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_takes_no_ids_leaves_what_it_cut_incomplete(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    """Asked once more, not for ever; the tokens it had sampled are lost in the ledger, not forgotten."""
    engine.takes_ids = False
    engine.script(Reply("part", finish_reason="abort"), Reply("whole"))
    ticket = await gateway.open()
    answer = await _ask(gateway, ticket, stream=stream)
    assert '"code":503' in answer.text
    made = await gateway.settled(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == ["the engine aborted the generation"]
    assert made.ledger.lost == made.ledger.sampled == len("part")


async def test_what_the_engine_cuts_behind_a_fence_does_not_go_on(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """A fence is for good: nothing may be sampled behind it."""
    ticket, hold = await gateway.open(), asyncio.Event()
    engine.script(Reply("part", hold=hold))
    asking = _ask(gateway, ticket)
    await eventually(lambda: engine.on_hold, "a generation on hold")
    fencing = asyncio.create_task(gateway.http.post("/v1/pools/default/fence", json={"drain_timeout_s": 30}))
    await eventually(lambda: gateway.inside.pools["default"].gate == "fenced", "the gate is shut")
    next(iter(engine.on_hold.values())).set()
    assert (await asking).status_code == 503
    assert (await fencing).json()["in_flight"] == 0
    assert len(engine.requests) == 1
