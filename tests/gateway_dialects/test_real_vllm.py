"""Before a real vLLM server, an agent sees through the gateway what vLLM's own routes in its dialect show it.

Ids aside, and but for what the dialects' docstrings list: a forced tool is "tool_use" here, an empty streamed message
has an empty block, a response that its length cut off ends in "response.incomplete", and tokens from the cache are
counted where the engine tells them on its chat route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tests.gateway.before_vllm import gateway_before
from tests.gateway.conftest import RunningGateway
from tests.gateway_dialects.chats import events
from tests.gateway_dialects.test_recorded import without_ids
from tests.gateway_dialects.test_streams import build_message
from tests.kit.vllm_server import VllmServer, engine_client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

SESSION = "a-session-before-a-real-engine-0123456789"
HI: list[Any] = [{"role": "user", "content": "What is 3 plus 4? Answer with a number."}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"name": "add", "description": "Add", "strict": True, "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "add", "description": "Add", "strict": True, "parameters": SCHEMA}
CALL = r'<tool_call>\n\{"name": "add", "arguments": \{"a":  3\}\}\n</tool_call>'
"""A regular expression for the engine's grammar."""
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}], "is_error": False}

MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "system blocks": {"system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": " Be kind."}]},
    "sampled among one": {"temperature": 1.0, "top_p": 0.9, "top_k": 1},
    "tools offered": {"tools": [TOOL]},
    "a tool required": {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 60},
    "history": {
        "tools": [TOOL],
        "messages": [
            *HI,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 3, "é": [1.5, None]}},
            ]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "So?"}]},
        ],
    },
    "too long": {"messages": [{"role": "user", "content": "word " * 3000}]},
}  # fmt: skip
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_output_tokens": 1},
    "instructions": {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u"},
    "items": {"input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}, *HI,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 3}'},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {"role": "user", "content": "So?"},
    ], "tools": [FUNCTION]},
    "tools offered": {"tools": [FUNCTION], "parallel_tool_calls": False},
    "a tool called": {"tools": [FUNCTION], "structured_outputs": {"regex": CALL}, "max_output_tokens": 100},
    "text and a tool called": {
        "tools": [FUNCTION], "structured_outputs": {"regex": r"Hm\.\n" + CALL}, "max_output_tokens": 100,
    },
    "log-probs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 6},
    "a schema": {
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
        "max_output_tokens": 60,
    },
    "an effort": {"reasoning": {"effort": "low"}},
    "too long": {"input": "word " * 3000},
}  # fmt: skip


@pytest.fixture
async def gateway(vllm_server: VllmServer) -> AsyncIterator[RunningGateway]:
    """In mirror mode, where the engine gets what the agent says and nothing else."""
    async with gateway_before(vllm_server, mode="mirror") as running:
        await running.open(session_id=SESSION)
        yield running


@pytest.fixture
async def ask(gateway: RunningGateway, vllm_server: VllmServer) -> AsyncIterator[Callable[..., Any]]:
    """(vLLM's own answer, the gateway's) to one body; a streamed one as its bytes."""
    async with engine_client() as http:

        async def both(route: str, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
            plain = await http.post(f"{vllm_server.url}/v1{route}", json={"model": vllm_server.model, **body})
            ours = await http.post(f"{gateway.url}/sessions/{SESSION}/v1{route}", json={"model": "any", **body})
            assert ours.status_code == plain.status_code, ours.text
            return plain, ours

        yield both


def message_body(name: str) -> dict[str, Any]:
    return {"max_tokens": 12, "temperature": 0, "messages": HI, **MESSAGES[name]}


def response_body(name: str) -> dict[str, Any]:
    return {"input": HI[0]["content"], "max_output_tokens": 12, "temperature": 0, "top_p": 1.0, **RESPONSES[name]}


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is made up per call; forced tools stop for the same reason."""
    blocks = message["content"] or [{"type": "text", "text": ""}]
    message = {**message, "id": "", "content": [{**b, "signature": "", "id": ""} for b in blocks]}
    if any(block["type"] == "tool_use" for block in message["content"]) and message["stop_reason"] == "end_turn":
        message["stop_reason"] = "tool_use"
    return message


@pytest.mark.parametrize("name", MESSAGES)
async def test_messages(ask: Callable[..., Any], gateway: RunningGateway, name: str) -> None:
    plain, ours = await ask("/messages", message_body(name))
    if plain.status_code != 200:
        assert ours.json() == plain.json()
        return
    assert comparable(ours.json()) == comparable(plain.json())
    (turn,) = (await gateway.trajectory(SESSION)).turns
    assert turn.incomplete is None
    usage = ours.json()["usage"]
    assert (len(turn.prompt_token_ids), len(turn.completion_token_ids)) == (
        usage["input_tokens"], usage["output_tokens"],
    )  # fmt: skip


@pytest.mark.parametrize("name", [n for n in MESSAGES if n != "too long"])
async def test_messages_streamed(ask: Callable[..., Any], name: str) -> None:
    plain, ours = await ask("/messages", message_body(name) | {"stream": True})
    expected, sent = events(plain.content), events(ours.content)
    assert sent[0]["message"]["usage"] == expected[0]["message"]["usage"]
    assert comparable(build_message(sent)) == comparable(build_message(expected))
    assert kinds(sent) == kinds(expected)


@pytest.mark.parametrize("name", ["plain", "system blocks", "tools offered", "history"])
async def test_counted_tokens(ask: Callable[..., Any], name: str) -> None:
    body = {k: v for k, v in message_body(name).items() if k in ("messages", "system", "tools")}
    plain, ours = await ask("/messages/count_tokens", body)
    assert ours.json() == plain.json()


@pytest.mark.parametrize("name", RESPONSES)
async def test_responses(ask: Callable[..., Any], gateway: RunningGateway, name: str) -> None:
    plain, ours = await ask("/responses", response_body(name))
    if plain.status_code != 200:
        assert ours.json() == plain.json()
        return
    assert comparable_response(ours.json()) == comparable_response(plain.json())
    (turn,) = (await gateway.trajectory(SESSION)).turns
    assert turn.incomplete is None


@pytest.mark.parametrize("name", [n for n in RESPONSES if n != "too long"])
async def test_responses_streamed(ask: Callable[..., Any], name: str) -> None:
    plain, ours = await ask("/responses", response_body(name) | {"stream": True})
    expected, sent = events(plain.content), events(ours.content)
    assert comparable_response(sent[-1]["response"]) == comparable_response(expected[-1]["response"])
    assert kinds(sent) == kinds(expected)


def comparable_response(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what is made up per call, nulls, and the counts of cached tokens."""
    made: dict[str, Any] = without_nulls(without_ids(response))
    for item in made["output"]:
        item.pop("call_id", None)
    for details in ("input_tokens_details", "output_tokens_details"):
        del made["usage"][details]
    return made


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def kinds(sent: list[dict[str, Any]]) -> list[str]:
    """The types of events in order, runs of deltas as one."""
    out: list[str] = []
    for event in sent:
        kind = event["type"].replace("response.incomplete", "response.completed")
        if not (out and out[-1] == kind and kind.endswith("delta")):
            out.append(kind)
    return out
