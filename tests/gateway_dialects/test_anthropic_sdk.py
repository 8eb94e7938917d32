"""Anthropic's SDK through the gateway: every answer is what it expects, and every turn is recorded whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.gateway.conftest import RunningGateway
from tests.gateway.under_way import answered
from tests.gateway_dialects.conftest import SESSION
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import EOS, Reply, ScriptedEngine, chat_ids, text_ids

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"name": "add", "description": "d", "input_schema": {"type": "object", "properties": {}}}]
RECORDED = Path(__file__).parents[1] / "gateway" / "recorded"


async def test_a_message_is_answered_and_recorded(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.script(Reply("héllo"))
    said = await anthropic_client.messages.create(
        model="whatever",
        max_tokens=64,
        system="be brief",
        messages=HI,
        stop_sequences=["END"],
        extra_body={"temperature": 0.5, "top_k": 3},
    )
    assert [(b.type, b.text) for b in said.content if b.type == "text"] == [("text", "héllo")]
    assert (said.model, said.stop_reason, said.role) == (engine.model, "end_turn", "assistant")
    (path, asked), sampled = engine.requests[0], len(text_ids("héllo")) + 1
    assert path == "/v1/chat/completions"
    assert {k: asked[k] for k in ("temperature", "top_k", "stop", "max_tokens")} == {
        "temperature": 0.5, "top_k": 3, "stop": ["END"], "max_tokens": 64,
    }  # fmt: skip
    prompt = chat_ids([{"role": "system", "content": "be brief"}, *HI])
    assert (said.usage.input_tokens, said.usage.output_tokens) == (len(prompt), sampled)
    made = await gateway.trajectory(SESSION)
    (turn,) = made.turns
    assert (turn.incomplete, turn.prompt_token_ids.tolist()) == (None, prompt)
    assert turn.completion_token_ids.tolist() == [*text_ids("héllo"), EOS]


async def test_a_stream_builds_the_same_message(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """Thinking, text and parallel tools, cut anywhere; the SDK's accumulated message equals the whole answer."""
    reply = Reply("sé", reasoning="hm", tool_calls=[("add", '{"a": 1}'), ("add", "{}")], slice_bytes=7, keep_alive=True)
    engine.script(reply, reply)
    asked: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": HI, "tools": TOOLS}
    async with anthropic_client.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream if event.type in ("text", "thinking", "input_json", "signature")]
        streamed = await stream.get_final_message()
        started = stream.current_message_snapshot.usage.input_tokens
    whole = await anthropic_client.messages.create(**asked)

    def shape(message: anthropic.types.Message) -> list[dict[str, Any]]:
        blocks = [b.model_dump(exclude_none=True, exclude={"id", "signature"}) for b in message.content]
        return [{k: v for k, v in b.items() if k not in ("parsed_output",)} for b in blocks]

    assert shape(streamed) == shape(whole)
    assert [b.type for b in streamed.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert kinds[:3] == ["thinking", "thinking", "signature"]
    assert streamed.content[0].signature  # type: ignore[union-attr]
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.input_tokens == whole.usage.input_tokens == started == len(chat_ids(HI))
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    made = await gateway.trajectory(SESSION)
    assert [t.incomplete for t in made.turns] == [None, None]


async def test_a_recorded_stream_of_a_growing_tool_call_comes_as_it_grows(
    anthropic_client: anthropic.AsyncAnthropic, engine: ScriptedEngine
) -> None:
    engine.script(Reply(raw=(RECORDED / "s02_scripted_auto_stream.sse").read_bytes(), raw_type="text/event-stream"))
    asked: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": HI, "tools": TOOLS}
    async with anthropic_client.messages.stream(**asked) as stream:
        pieces = [e.partial_json async for e in stream if e.type == "input_json"]
        said = await stream.get_final_message()
    (text, block) = said.content
    assert (text.type, block.type) == ("text", "tool_use")
    assert block.type == "tool_use"
    assert len(pieces) > 5
    assert json.loads("".join(pieces)) == block.input
    assert said.stop_reason == "tool_use"


async def test_three_turns_with_tools_are_one_sequence(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """The SDK's own blocks go back as history, and every prompt extends the one before it."""
    engine.script(
        Reply("", tool_calls=[("add", '{"a": 1}'), ("add", '{"b": "\\u00e9"}')]),
        Reply("sum", tool_calls=[("add", "{}")]),
        Reply("done", reasoning="hm"),
    )
    messages = list(HI)
    for _ in range(3):
        said = await anthropic_client.messages.create(model="m", max_tokens=64, messages=messages, tools=TOOLS)
        messages.append({"role": "assistant", "content": said.content})
        results = [
            {"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": "3"}], "is_error": False}
            for b in said.content if b.type == "tool_use"
        ]  # fmt: skip
        messages.append({"role": "user", "content": results})
    assert said.stop_reason == "end_turn"
    made = await gateway.seal(SESSION)
    (sequence,) = made.sequences
    assert sequence.trained_tokens == made.ledger.sampled
    assert made.incomplete is None


async def test_a_stop_sequence_is_named(anthropic_client: anthropic.AsyncAnthropic, engine: ScriptedEngine) -> None:
    engine.script(Reply("x", stop_reason="END"), Reply("x", stop_reason="END"), Reply("x", finish_reason="length"))
    asked: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": HI, "stop_sequences": ["END"]}
    said = await anthropic_client.messages.create(**asked)
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "END")
    async with anthropic_client.messages.stream(**asked) as stream:
        said = await stream.get_final_message()
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "END")
    assert (await anthropic_client.messages.create(**asked)).stop_reason == "max_tokens"


async def test_tokens_are_counted_without_a_turn(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    counted = await anthropic_client.messages.count_tokens(model="m", system="s", messages=HI, tools=TOOLS)
    assert counted.input_tokens == len(chat_ids([{"role": "system", "content": "s"}, *HI]))
    (asked,) = engine.tokenized
    assert (asked["model"], asked["tools"][0]["function"]["name"], engine.requests) == (engine.model, "add", [])
    assert not (await gateway.trajectory(SESSION)).turns


async def test_the_session_can_be_in_the_api_key(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """x-api-key or a bearer token, on the gateway's own URL; and a ticket's base URL, with its /v1, does as well."""
    ticket = await gateway.open()
    clients = [
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key=ticket["api_key"]),
        anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=ticket["api_key"]),
        anthropic.AsyncAnthropic(base_url=gateway.url + "/v1", api_key=ticket["api_key"]),
        anthropic.AsyncAnthropic(base_url=ticket["base_url"], api_key="EMPTY"),
    ]
    for client in clients:
        async with client:
            assert (await client.messages.create(model="m", max_tokens=8, messages=HI)).content
    assert len((await gateway.trajectory(ticket["session_id"])).turns) == len(clients)
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as refusal:
            await client.messages.create(model="m", max_tokens=8, messages=HI)
    assert refusal.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


async def test_errors_are_anthropics_own(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """Bad requests by name, the engine's words as they are, a failing engine as api_error; each with a request id."""
    client = anthropic_client
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\].*'bash_20250124'") as bad:
        await client.messages.create(
            model="m", max_tokens=8, messages=HI, tools=[{"type": "bash_20250124", "name": "bash"}]
        )
    assert bad.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert bad.value.request_id
    refusal = {"message": "This model's maximum context length is 8 tokens", "type": "BadRequestError", "code": 400}
    engine.script(Reply(status=400, error=refusal))
    with pytest.raises(anthropic.BadRequestError, match="maximum context length") as bad:
        await client.messages.create(model="m", max_tokens=8, messages=HI, extra_headers={"X-Request-Id": "mine"})
    assert bad.value.body["error"]["type"] == "BadRequestError"  # type: ignore[index]
    assert bad.value.request_id == "mine"
    engine.script(Reply(raw=b"[]"))
    with pytest.raises(anthropic.InternalServerError) as failed:
        await client.messages.create(model="m", max_tokens=8, messages=HI)
    assert failed.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError, match="no route"):
        await client.messages.batches.list()
    await gateway.seal(SESSION)
    with pytest.raises(anthropic.APIStatusError, match="is sealed") as over:
        await client.messages.create(model="m", max_tokens=8, messages=HI)
    assert over.value.status_code == 410


@pytest.mark.parametrize("stream", [False, True])
async def test_an_overloaded_service_is_tried_again(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    """A fenced pool is 529 with Retry-After, which the SDK waits for; the call then succeeds, sampled once."""
    ticket = await gateway.open()
    await gateway.http.post("/v1/pools/default/fence", json={})
    url = ticket["base_url"].removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="EMPTY", max_retries=0) as client:
        with pytest.raises(anthropic.InternalServerError, match="is fenced") as refusal:
            await client.messages.create(model="m", max_tokens=8, messages=HI)
        assert refusal.value.status_code == 529
        assert refusal.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
        assert int(refusal.value.response.headers["retry-after"]) >= 1
    async with (
        answered(anthropic.DefaultAsyncHttpxClient) as (http, statuses),
        anthropic.AsyncAnthropic(base_url=url, api_key="EMPTY", max_retries=8, http_client=http) as client,
    ):
        asking = asyncio.create_task(client.messages.create(model="m", max_tokens=8, messages=HI, stream=stream))
        await eventually(lambda: 529 in statuses, "it was refused")
        await gateway.http.post("/v1/pools/default/open", json={"policy_version": 1})
        said = await asking
        if isinstance(said, anthropic.AsyncStream):
            assert [event.type async for event in said][-1] == "message_stop"
    assert (set(statuses[:-1]), statuses[-1]) == ({529}, 200)
    assert len(engine.requests) == 1


async def test_a_worker_lost_in_a_stream_is_an_error_event(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.script(Reply("hello", die_after=3))
    with pytest.raises(anthropic.APIStatusError, match="failed") as lost:
        async with anthropic_client.messages.stream(model="m", max_tokens=8, messages=HI) as stream:
            async for _ in stream:
                pass
    assert lost.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    (turn,) = (await gateway.settled(SESSION)).turns
    assert turn.incomplete


async def test_a_client_that_leaves_aborts_the_engines_call(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.script(Reply("hello", hold=asyncio.Event()))
    async with anthropic_client.messages.stream(model="m", max_tokens=8, messages=HI) as stream:
        async for event in stream:
            if event.type == "text":
                break
    (turn,) = (await gateway.settled(SESSION)).turns
    assert turn.incomplete is not None
    assert "disconnected" in turn.incomplete


@pytest.mark.parametrize("exact", [False, True])
async def test_a_stream_says_the_prompts_length_before_its_first_token(
    anthropic_client: anthropic.AsyncAnthropic, gateway: RunningGateway, engine: ScriptedEngine, exact: bool
) -> None:
    """In exact mode too, where the second turn is prompted with ids."""
    engine.script(Reply("one"), Reply("two"))
    messages: list[Any] = [{"role": "user", "content": "a"}]
    for said in ("one", "two"):
        asked = {"model": "m", "max_tokens": 9, "messages": messages}
        async with anthropic_client.messages.stream(**asked) as events:
            first = await anext(aiter(events))
            assert (await events.get_final_text()) == said
        assert first.type == "message_start"
        made = await gateway.settled(SESSION)
        assert first.message.usage.input_tokens == len(made.turns[-1].prompt_token_ids)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "b"}]
    assert made.mode == ("exact" if exact else "mirror")
