"""Exact mode before a real vLLM server: its answers read as chat's, and its own log-probs say the ids are right."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from rollway_wire.tokens import Trajectory
from tests.gateway.before_vllm import gateway_before
from tests.gateway.conftest import RunningGateway
from tests.gateway.shapes import events_of, merged, without_ids
from tests.gateway.test_real_vllm import CALL, CHAT, STREAM, TOOLS
from tests.kit.deadlines import eventually
from tests.kit.vllm_server import VllmServer, engine_client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

ASK = {"role": "user", "content": "What is 3 plus 4? Answer with a number."}
LONG = 600
"""Tokens of an answer that is under way when something happens to it: the engine's brake is on until then."""
ONLY_CHAT = {("prompt log-probs", how) for how in STREAM if how != "whole"}
"""What goes as chat also when ids are known."""


@pytest.fixture
async def real(vllm_server: VllmServer) -> AsyncIterator[tuple[RunningGateway, str]]:
    """A gateway that serves the server in exact mode or not at all, and the server's URL."""
    async with gateway_before(vllm_server, mode="exact") as gateway:
        yield gateway, vllm_server.url


async def _token_id(url: str, text: str) -> int:
    async with engine_client(60) as http:
        body = {"model": "tiny", "prompt": text, "add_special_tokens": False}
        (found,) = (await http.post(f"{url}/tokenize", json=body)).json()["tokens"]
        return int(found)


@pytest.mark.parametrize("how", STREAM)
@pytest.mark.parametrize("what", [name for name in CHAT if "messages" not in CHAT[name]])
async def test_answers_to_ids_are_plain_vllms(real: tuple[RunningGateway, str], what: str, how: str) -> None:
    """The second turn, prompted with ids, reads as the chat route answers the same conversation.

    The first answer is one token, which rendering anew keeps, so both prompts are equal.
    """
    gateway, url = real
    ticket = await gateway.open()
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 12, **CHAT[what], **STREAM[how]}
    first = {"model": "tiny", "messages": [ASK], "max_tokens": 1, "allowed_token_ids": [await _token_id(url, "Y")]}
    if "tools" in asked:
        first["tools"] = asked["tools"]
    messages = [ASK, {"role": "assistant", "content": "Y"}, {"role": "user", "content": "And 4 plus 5?"}]
    async with engine_client() as http:
        said = await http.post(ticket["base_url"] + "/chat/completions", json=first)
        assert said.json()["choices"][0]["message"]["content"] == "Y", said.text
        bases = (f"{url}/v1", ticket["base_url"])
        plain, ours = [await http.post(b + "/chat/completions", json={**asked, "messages": messages}) for b in bases]
        template = {k: asked[k] for k in ("tools",) if k in asked}
        rendered = await http.post(f"{url}/tokenize", json={"model": "tiny", "messages": messages, **template})
    assert (plain.status_code, plain.headers["content-type"]) == (ours.status_code, ours.headers["content-type"])
    assert plain.status_code == 200
    if asked.get("stream"):
        assert merged(events_of(ours.text)) == merged(events_of(plain.text))
    else:
        assert json.dumps(without_ids(ours.json())) == json.dumps(without_ids(plain.json()))
    made = await gateway.settled(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == [None] * len(made.turns)
    assert {tuple(t.prompt_token_ids) for t in made.turns[1:]} == {tuple(rendered.json()["tokens"])}
    assert made.mode == ("mirror" if (what, how) in ONLY_CHAT else "exact"), made.metadata["branches"]


async def _generated(http: httpx.AsyncClient, url: str) -> int:
    """Tokens the engine says it has sampled since it began."""
    text = (await http.get(f"{url}/metrics")).text
    return sum(int(float(n)) for n in re.findall(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", text, re.M))


async def _message(client: openai.AsyncOpenAI, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The assistant message, put together from its deltas where they stream."""
    answer: Any = await client.chat.completions.create(**body, stream=stream)
    if not stream:
        whole: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
        return whole
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    async for chunk in answer:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                calls = message.setdefault("tool_calls", [])
                if part.index == len(calls):
                    calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
                calls[part.index]["function"]["name"] += part.function.name or ""
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    return message


async def _session(gateway: RunningGateway, turns: int, *, stream: bool) -> tuple[Trajectory, list[int]]:
    """An agent at temperature 1 that is made to call a tool in every second turn; the trajectory, and which turns
    sampled freely. It keeps its history as SDKs do, tool arguments written anew."""
    ticket = await gateway.open()
    messages: list[dict[str, Any]] = [ASK]
    free = []
    async with gateway.openai(ticket) as client:
        for turn in range(turns):
            body: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": TOOLS, "temperature": 1}
            if turn % 2:
                body |= {"max_tokens": 100, "extra_body": {"structured_outputs": {"regex": r"Hm\. " + CALL}}}
            else:
                free.append(turn)
                body["max_tokens"] = 16
            message = await _message(client, body, stream=stream)
            calls = message.get("tool_calls") or ()
            assert bool(calls) == bool(turn % 2)
            for call in calls:
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
            messages.append(message)
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": f"{turn} – né 👍"} for c in calls]
            messages += [] if calls else [{"role": "user", "content": f"Go on, {turn}."}]
    return await gateway.seal(ticket["session_id"]), free


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turns", [2, 5, 8])
async def test_sessions_are_one_sequence_whose_log_probs_the_engine_confirms(
    real: tuple[RunningGateway, str], turns: int, stream: bool
) -> None:
    gateway, url = real
    async with engine_client() as http:
        before = await _generated(http, url)
        made, free = await _session(gateway, turns, stream=stream)
        assert made.ledger.sampled == await _generated(http, url) - before
        assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1), made.metadata["branches"]
        assert made.metadata["fidelity"] == {"turns": turns, "exact": turns}
        (row,) = made.sequences
        body = {"model": "tiny", "prompt": row.token_ids.tolist(), "max_tokens": 1, "prompt_logprobs": 0}
        answer = (await http.post(f"{url}/v1/completions", json=body)).json()["choices"][0]
    differences = []
    for position, turn in enumerate(made.turns):
        ids = turn.completion_token_ids
        at = len(turn.prompt_token_ids)
        assert row.token_ids[at : at + len(ids)] == ids
        if position in free:
            said = [answer["prompt_logprobs"][at + k][str(i)]["logprob"] for k, i in enumerate(ids)]
            differences += [abs(a - b) for a, b in zip(said, turn.logprobs, strict=True)]
    assert max(differences) <= 1e-4
    assert made.ledger.trained == made.ledger.sampled == sum(row.loss_mask)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_weight_update_in_the_middle_of_a_turn_keeps_it_whole(
    real: tuple[RunningGateway, str], vllm_server: VllmServer, stream: bool
) -> None:
    """The engine is paused and ends its generations; the turn goes on from its tokens under the next version, and the
    engine's counter knows of no token that the session does not."""
    gateway, url = real
    async with engine_client() as http:
        before = await _generated(http, url)
        made = await _updated_in_a_turn(gateway, vllm_server, http, stream=stream)
        assert made.ledger.sampled == await _generated(http, url) - before == LONG
        (turn,) = made.turns
        assert (turn.incomplete, turn.finish_reason, made.mode) == (None, "length", "exact")
        assert (turn.policy_version_start, turn.policy_version_end) == (1, 2)
        asked = {"model": "tiny", "prompt": made.sequences[0].token_ids.tolist(), "max_tokens": 1, "prompt_logprobs": 0}
        said = (await http.post(f"{url}/v1/completions", json=asked)).json()["choices"][0]["prompt_logprobs"]
    at = len(turn.prompt_token_ids)
    values = [said[at + k][str(i)]["logprob"] for k, i in enumerate(turn.completion_token_ids)]
    assert max(abs(a - b) for a, b in zip(values, turn.logprobs, strict=True)) <= 1e-4


async def _updated_in_a_turn(
    gateway: RunningGateway, server: VllmServer, http: httpx.AsyncClient, *, stream: bool
) -> Trajectory:
    """A session of one turn with an update while the engine is at it."""
    await gateway.http.post("/v1/pools/default/open", json={"policy_version": 1})
    ticket = await gateway.open()
    body: dict[str, Any] = {"model": "tiny", "messages": [ASK], "temperature": 1, "max_tokens": LONG}
    body["extra_body"] = {"ignore_eos": True}
    async with gateway.openai(ticket) as client:
        with server.brake.on():
            asking = asyncio.create_task(_message(client, body, stream=stream))
            await server.brake.under_way(1)
            (await gateway.http.post("/v1/pools/default/pause", json={"timeout_s": 0})).raise_for_status()
            (await http.post(f"{server.url}/pause", params={"mode": "abort"})).raise_for_status()
            await eventually(lambda: asking.done() or _held(gateway), "the call waits at the gate", within_s=120)
            assert not asking.done(), asking
        (await http.post(f"{server.url}/resume")).raise_for_status()
        await gateway.http.post("/v1/pools/default/open", json={"policy_version": 2})
        await asking
    return await gateway.seal(ticket["session_id"])


async def _held(gateway: RunningGateway) -> bool:
    return bool((await gateway.http.get("/v1/pools/default")).json()["held"])


async def test_a_retry_after_a_disconnect_costs_no_second_generation(vllm_server: VllmServer) -> None:
    """The engine's counter shows one generation, and the session holds each of its tokens once."""
    async with gateway_before(vllm_server, mode="exact", retry_grace_s=600) as gateway, engine_client() as http:
        before = await _generated(http, vllm_server.url)
        ticket = await gateway.open()
        body = {"model": "tiny", "messages": [ASK], "max_tokens": LONG, "ignore_eos": True, "stream": True}
        url = ticket["base_url"] + "/chat/completions"
        with vllm_server.brake.on():
            async with http.stream("POST", url, json=body) as answer:
                lines = answer.aiter_lines()
                for _ in range(6):
                    await anext(lines)
            (call,) = gateway.inside.store.get(ticket["session_id"]).originals._all()
            await eventually(lambda: call.answers_retry(said=False), "the gateway knows that the client left")
        said = await http.post(url, json=body)
        assert said.text.endswith("data: [DONE]\n\n")
        made = await gateway.seal(ticket["session_id"])
        assert made.ledger.trained == made.ledger.sampled == await _generated(http, vllm_server.url) - before == LONG
        assert made.metadata["rejoined_calls"] == 1
