"""The gateway before a real vLLM server: agents see what plain vLLM shows, and turns hold what it sampled."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.gateway.before_vllm import gateway_before
from tests.gateway.conftest import RunningGateway
from tests.gateway.shapes import events_of, merged, without_ids
from tests.kit.vllm_server import VllmServer, engine_client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

HI = [{"role": "user", "content": "What is 3 plus 4? Answer with a number."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
]
SUM = {"type": "object", "properties": {"a": {"enum": [3, 4]}}, "required": ["a"], "additionalProperties": False}
STRICT = [{"type": "function", "function": {"name": "add", "strict": True, "parameters": SUM}}]
CALL = r'<tool_call>\n\{"name": "add", "arguments": \{"a":  3\}\}\n</tool_call>'
"""As a regular expression for the engine's grammar; the double space is lost when vLLM writes the arguments anew."""
CHAT: dict[str, dict[str, Any]] = {
    "plain": {},
    "two choices": {"n": 2, "temperature": 1, "seed": 7},
    "length": {"max_tokens": 1},
    "a stop string": {"stop": ["e", "a"]},
    "tools offered": {"tools": TOOLS},
    "a tool called": {"tools": TOOLS, "structured_outputs": {"regex": CALL}, "max_tokens": 100},
    "text and a tool called": {"tools": TOOLS, "structured_outputs": {"regex": r"Hm\.\n" + CALL}, "max_tokens": 100},
    "two tools called": {"tools": TOOLS, "structured_outputs": {"regex": CALL + r"\n" + CALL}, "max_tokens": 150},
    "one of two tools called": {
        "tools": TOOLS, "structured_outputs": {"regex": CALL + r"\n" + CALL}, "max_tokens": 150,
        "parallel_tool_calls": False,
    },
    "a tool required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60},
    "a tool named": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
    "a strict tool": {"tools": STRICT, "logit_bias": {"3": 100}, "max_tokens": 60},
    "a strict tool, required": {"tools": STRICT, "tool_choice": "required", "max_tokens": 60},
    "a form of JSON": {"response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": SUM}}},
    "text as told": {"structured_outputs": {"choice": ["Sé, 4 – ok 👍"]}, "max_tokens": 60},
    "log-probs": {"logprobs": True},
    "top log-probs": {"logprobs": True, "top_logprobs": 3, "return_tokens_as_token_ids": True},
    "top log-probs by text": {"logprobs": True, "top_logprobs": 5, "temperature": 1, "seed": 7},
    "null top log-probs": {"logprobs": True, "top_logprobs": None},
    "token ids": {"return_token_ids": True},
    "no reasoning": {"include_reasoning": False},
    "a prefill echoed": {
        "messages": [*HI, {"role": "assistant", "content": "It is"}], "echo": True,
        "continue_final_message": True, "add_generation_prompt": False,
    },
    "prompt log-probs": {"prompt_logprobs": 0},
}  # fmt: skip
TEXT: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompts and choices": {"prompt": ["One plus", "Two plus 2"], "n": 2, "temperature": 1, "seed": 7},
    "token ids in": {"prompt": [40, 41, 42, 43]},
    "echo": {"echo": True},
    "echo of two": {"echo": True, "prompt": ["One plus", "Two plus 2"]},
    "echo of token ids": {"echo": True, "prompt": [40, 41, 42, 43]},
    "log-probs": {"logprobs": 2},
    "token ids out": {"return_token_ids": True},
}
STREAM: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "stream with running usage": {
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "too long": {"messages": [{"role": "user", "content": "word " * 3000}]},
    "no messages": {"messages": []},
    "a wrong type": {"temperature": "hot"},
    "too many top log-probs": {"logprobs": True, "top_logprobs": 99},
    "top log-probs alone": {"top_logprobs": 2},
    "stream options without stream": {"stream_options": {"include_usage": True}},
}


@pytest.fixture
async def real(vllm_server: VllmServer) -> AsyncIterator[tuple[RunningGateway, str]]:
    """A gateway before the server, and the server's URL."""
    async with gateway_before(vllm_server) as gateway:
        yield gateway, vllm_server.url


async def _both(real: tuple[RunningGateway, str], route: str, body: dict[str, Any]) -> tuple[Any, Any, str]:
    """(status, type, body) of plain vLLM and of the gateway, and the session."""
    gateway, url = real
    ticket = await gateway.open()
    out = []
    async with engine_client() as http:
        for base in (f"{url}/v1", ticket["base_url"]):
            answer = await http.post(base + route, json=body)
            out.append((answer.status_code, answer.headers["content-type"], answer.text))
    return out[0], out[1], ticket["session_id"]


@pytest.mark.parametrize("how", STREAM)
@pytest.mark.parametrize("what", CHAT)
async def test_chat_answers_are_plain_vllms(real: tuple[RunningGateway, str], what: str, how: str) -> None:
    body = {"model": "tiny", "messages": HI, "temperature": 0, "max_tokens": 12, **CHAT[what], **STREAM[how]}
    await _same(real, "/chat/completions", body)


@pytest.mark.parametrize("how", STREAM)
@pytest.mark.parametrize("what", TEXT)
async def test_text_answers_are_plain_vllms(real: tuple[RunningGateway, str], what: str, how: str) -> None:
    body = {"model": "tiny", "prompt": "One plus", "temperature": 0, "max_tokens": 8, **TEXT[what], **STREAM[how]}
    captured = not (body.get("echo") and isinstance(body["prompt"][0], int))
    await _same(real, "/completions", body, captured=captured)


async def _same(real: tuple[RunningGateway, str], route: str, body: dict[str, Any], captured: bool = True) -> None:
    plain, ours, session_id = await _both(real, route, body)
    assert (plain[0], plain[1]) == (ours[0], ours[1])
    assert plain[0] == 200
    if body.get("stream"):
        assert merged(events_of(ours[2])) == merged(events_of(plain[2]))
    else:
        assert json.dumps(without_ids(json.loads(ours[2]))) == json.dumps(without_ids(json.loads(plain[2])))
    made = await real[0].settled(session_id)
    assert [t.incomplete is None for t in made.turns] == [captured] * len(made.turns), made.turns[0].incomplete
    assert made.ledger.sampled > 0 or not captured


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", REFUSED)
async def test_refusals_are_plain_vllms(real: tuple[RunningGateway, str], what: str, stream: bool) -> None:
    if what.startswith("stream") and stream:
        stream = False
    body = {"model": "tiny", "messages": HI, "max_tokens": 4, **REFUSED[what]} | ({"stream": True} if stream else {})
    plain, ours, session_id = await _both(real, "/chat/completions", body)
    assert plain[0] == 400 or '"code": 400' in plain[2]  # some come after the head of a stream
    assert ours == plain
    assert (await real[0].trajectory(session_id)).turns == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_hold_the_engines_own_tokens(real: tuple[RunningGateway, str], stream: bool) -> None:
    """Ids and log-probs of a captured turn equal what the engine reports when asked directly, with one seed."""
    gateway, url = real
    body: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 24, "n": 2, "seed": 7}
    async with engine_client() as http:
        asked = {**body, "logprobs": True, "return_token_ids": True}
        own = (await http.post(f"{url}/v1/chat/completions", json=asked)).json()
    ticket = await gateway.open()
    async with gateway.openai(ticket) as client:
        answer = await client.chat.completions.create(**body, stream=stream)
        if isinstance(answer, openai.AsyncStream):
            async for _ in answer:
                pass
    made = await gateway.seal(ticket["session_id"])
    assert made.incomplete is None
    for turn, choice in zip(made.turns, own["choices"], strict=True):
        assert turn.prompt_token_ids.tolist() == own["prompt_token_ids"]
        assert turn.completion_token_ids.tolist() == choice["token_ids"]
        theirs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert max(abs(a - b) for a, b in zip(turn.logprobs, theirs, strict=True)) < 1e-5
    assert made.ledger.trained == made.ledger.sampled == own["usage"]["completion_tokens"]


async def test_a_client_that_leaves_stops_the_generation(
    real: tuple[RunningGateway, str], vllm_server: VllmServer
) -> None:
    gateway, _ = real
    ticket = await gateway.open()
    body = {"messages": HI, "model": "tiny", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 16}
    with vllm_server.brake.on():
        async with (
            engine_client() as http,
            http.stream("POST", ticket["base_url"] + "/chat/completions", json=body) as answer,
        ):
            lines = answer.aiter_lines()
            for _ in range(2 * 16 + 40):  # the roles of every choice, then some text
                await anext(lines)
        made = await gateway.settled(ticket["session_id"])
    assert {t.incomplete for t in made.turns} == {"client disconnected"}
    assert 0 < made.ledger.sampled < 16 * 900
    assert made.ledger.lost == made.ledger.sampled
