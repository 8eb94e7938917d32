"""OpenAI's SDK on the Responses API through the gateway: answers as it expects them, every turn recorded whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.gateway.conftest import RunningGateway
from tests.gateway.under_way import answered
from tests.gateway_dialects.conftest import SESSION
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine, chat_ids, text_ids

TOOLS: list[Any] = [
    {"type": "function", "name": "add", "description": "d", "parameters": {"type": "object"}, "strict": False}
]
RECORDED = Path(__file__).parents[1] / "gateway" / "recorded"
HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_a_response_is_answered_and_recorded(
    openai_client: openai.AsyncOpenAI, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.script(Reply("héllo"))
    said = await openai_client.responses.create(
        model="whatever", input="hi", instructions="be brief", max_output_tokens=64, temperature=0.5,
        metadata={"a": "b"},
    )  # fmt: skip
    assert (said.output_text, said.status, said.model) == ("héllo", "completed", engine.model)
    assert (said.metadata, said.temperature, said.instructions) == ({"a": "b"}, 0.5, "be brief")
    assert engine.requests[0][1]["max_tokens"] == 64
    prompt = chat_ids([{"role": "system", "content": "be brief"}, *HI])
    assert said.usage is not None
    assert (said.usage.input_tokens, said.usage.output_tokens) == (len(prompt), len(text_ids("héllo")) + 1)
    (turn,) = (await gateway.trajectory(SESSION)).turns
    assert (turn.incomplete, turn.prompt_token_ids.tolist()) == (None, prompt)


async def test_a_stream_builds_the_same_response(
    openai_client: openai.AsyncOpenAI, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    reply = Reply("sé", reasoning="hm", tool_calls=[("add", '{"a": 1}'), ("add", "{}")], slice_bytes=7, keep_alive=True)
    engine.script(reply, reply)
    asked: dict[str, Any] = {"model": "m", "input": "hi", "tools": TOOLS}
    async with openai_client.responses.stream(**asked) as stream:
        seen = [event async for event in stream]
        streamed = await stream.get_final_response()
    whole = await openai_client.responses.create(**asked)

    def shape(response: Any) -> dict[str, Any]:
        made = json.loads(
            response.model_dump_json(exclude={"output": {"__all__": {"parsed_arguments"}}}, warnings=False)
        )
        for item in made["output"]:
            item.pop("call_id", None)
            item.pop("async", None)  # the SDK's own field comes under two names
            item["id"] = item["id"].split("_")[0]
            for part in item.get("content") or ():
                part.pop("parsed", None)
        return {k: v for k, v in made.items() if k not in ("id", "created_at")}

    assert shape(streamed) == shape(whole)
    assert [i.type for i in streamed.output] == ["reasoning", "message", "function_call", "function_call"]
    assert streamed.output_text == "sé"
    assert "".join(e.delta for e in seen if e.type == "response.reasoning_text.delta") == "hm"
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == "sé"
    assert [e.sequence_number for e in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    assert [t.incomplete for t in (await gateway.trajectory(SESSION)).turns] == [None, None]


async def test_a_recorded_stream_of_a_growing_tool_call_comes_as_it_grows(
    openai_client: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    engine.script(Reply(raw=(RECORDED / "s02_scripted_auto_stream.sse").read_bytes(), raw_type="text/event-stream"))
    async with openai_client.responses.stream(model="m", input="hi", tools=TOOLS) as stream:
        pieces = [e.delta async for e in stream if e.type == "response.function_call_arguments.delta"]
        said = await stream.get_final_response()
    (_, item) = said.output
    assert item.type == "function_call"
    assert len(pieces) > 5
    assert "".join(pieces) == item.arguments


@pytest.mark.parametrize("kept_by", ["agent", "gateway"])
async def test_three_turns_with_tools_are_one_sequence(
    openai_client: openai.AsyncOpenAI, gateway: RunningGateway, engine: ScriptedEngine, kept_by: str
) -> None:
    """Whether the agent sends the SDK's items back or names the previous response, every prompt extends the last."""
    engine.script(
        Reply("", tool_calls=[("add", '{"a": 1}'), ("add", '{"b": "é"}')]),
        Reply("sum", tool_calls=[("add", "{}")]),
        Reply("done", reasoning="hm"),
    )
    items: list[Any] = list(HI)
    said = None
    for _ in range(3):
        previous = said.id if said is not None and kept_by == "gateway" else None
        said = await openai_client.responses.create(
            model="m", input=items, tools=TOOLS, previous_response_id=previous, store=kept_by == "gateway",
            include=["reasoning.encrypted_content"],
        )  # fmt: skip
        results = [
            {"type": "function_call_output", "call_id": i.call_id, "output": "3"}
            for i in said.output if i.type == "function_call"
        ]  # fmt: skip
        items = results if kept_by == "gateway" else [*items, *said.output, *results]
    assert said is not None
    assert said.output_text == "done"
    made = await gateway.seal(SESSION)
    (sequence,) = made.sequences
    assert sequence.trained_tokens == made.ledger.sampled
    assert made.incomplete is None


async def test_structured_output_is_parsed(openai_client: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    class City(BaseModel):
        name: str

    engine.script(Reply('{"name": "Paris"}'))
    said = await openai_client.responses.parse(model="m", input="hi", text_format=City)
    assert said.output_parsed == City(name="Paris")
    wanted = engine.requests[0][1]["response_format"]
    assert (wanted["type"], wanted["json_schema"]["name"], wanted["json_schema"]["strict"]) == (
        "json_schema",
        "City",
        True,
    )


async def test_logprobs_are_shown_only_when_asked_for(
    openai_client: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    said = await openai_client.responses.create(model="m", input="hi")
    assert said.output[0].content[0].logprobs is None  # type: ignore[union-attr,index]
    asked: dict[str, Any] = {"model": "m", "input": "hi", "include": ["message.output_text.logprobs"]}
    said = await openai_client.responses.create(**asked)
    shown = said.output[0].content[0].logprobs  # type: ignore[union-attr,index]
    assert [(e.token, e.logprob) for e in shown] == [("o", 0.0), ("k", -0.125), ("<eos>", -0.25)]  # type: ignore[union-attr]
    async with openai_client.responses.stream(**asked) as stream:
        entries = [
            entry for e in [e async for e in stream] if e.type == "response.output_text.delta" for entry in e.logprobs
        ]
    assert [(e.token, e.logprob) for e in entries] == [("o", 0.0), ("k", -0.125)]
    assert "token_ids" not in said.model_dump_json()


async def test_errors_are_openais_own(
    openai_client: openai.AsyncOpenAI, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    client = openai_client
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\].*'web_search'"):
        await client.responses.create(model="m", input="hi", tools=[{"type": "web_search"}])
    with pytest.raises(openai.NotFoundError, match="'resp_unknown' not found"):
        await client.responses.create(model="m", input="hi", previous_response_id="resp_unknown")
    refusal = {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}
    engine.script(Reply(status=400, error=refusal))
    with pytest.raises(openai.BadRequestError, match="too long") as bad:
        await client.responses.create(model="m", input="hi", extra_headers={"X-Request-Id": "mine"})
    assert bad.value.body == refusal
    assert bad.value.request_id == "mine"
    with pytest.raises(openai.NotFoundError, match="no route"):
        await client.responses.retrieve("resp_x")
    await gateway.seal(SESSION)
    with pytest.raises(openai.APIStatusError, match="is sealed") as over:
        await client.responses.create(model="m", input="hi")
    assert over.value.status_code == 410


async def test_a_fenced_pool_is_tried_again(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    await gateway.http.post("/v1/pools/default/fence", json={})
    async with gateway.openai(ticket) as client:
        with pytest.raises(openai.InternalServerError, match="is fenced") as refusal:
            await client.responses.create(model="m", input="hi")
        assert refusal.value.status_code == 503
    async with answered() as (http, statuses), gateway.openai(ticket, max_retries=8, http_client=http) as client:
        asking = asyncio.create_task(client.responses.create(model="m", input="hi"))
        await eventually(lambda: 503 in statuses, "it was refused")
        await gateway.http.post("/v1/pools/default/open", json={"policy_version": 1})
        assert (await asking).output_text == "ok"
    assert (set(statuses[:-1]), statuses[-1]) == ({503}, 200)
    assert len(engine.requests) == 1


async def test_a_worker_lost_in_a_stream_fails_the_response(
    openai_client: openai.AsyncOpenAI, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.script(Reply("hello", die_after=3))
    stream = await openai_client.responses.create(model="m", input="hi", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "failed" in last.response.error.message
    with pytest.raises(openai.NotFoundError):
        await openai_client.responses.create(model="m", input="hi", previous_response_id=last.response.id)
    assert (await gateway.settled(SESSION)).turns[0].incomplete


async def test_a_response_cut_by_its_length_says_so(openai_client: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script(Reply("x", finish_reason="length"), Reply("x", finish_reason="length"))
    said = await openai_client.responses.create(model="m", input="hi", max_output_tokens=1)
    assert said.incomplete_details is not None
    assert (said.status, said.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    stream = await openai_client.responses.create(model="m", input="hi", max_output_tokens=1, stream=True)
    last = [event async for event in stream][-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", "x")  # type: ignore[union-attr]
