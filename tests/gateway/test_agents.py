"""The OpenAI SDK through the gateway: answers, tools, reasoning, any number of choices, and turns left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.gateway.conftest import RunningGateway
from tests.kit.scripted_engine import EOS, Reply, ScriptedEngine, chat_ids, text_ids

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_a_chat_call_is_answered_and_recorded(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.script(Reply("héllo"))
    ticket = await gateway.open()
    async with gateway.openai(ticket) as client:
        answer = await client.chat.completions.create(model="whatever", messages=HI)
    assert answer.choices[0].message.content == "héllo"
    assert answer.model == engine.model
    assert engine.requests[0][1]["model"] == engine.model
    made = await gateway.trajectory(ticket["session_id"])
    (turn,) = made.turns
    assert turn.incomplete is None
    assert turn.prompt_token_ids.tolist() == chat_ids(HI)
    assert turn.completion_token_ids.tolist() == [*text_ids("héllo"), EOS]
    assert turn.logprobs.tolist() == [-(k % 7) / 8 for k in range(7)]
    assert turn.finish_reason == "stop"
    assert made.ledger.sampled == made.ledger.trained == 7
    assert made.incomplete is None


async def test_streamed_text_tools_and_reasoning_arrive_whole(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.script(Reply("sé", reasoning="hm", tool_calls=[("add", '{"a": 1}'), ("sub", "{}")]))
    ticket = await gateway.open()
    text, reasoning, calls, finish = "", "", [], None
    async with gateway.openai(ticket) as client:
        async for chunk in await client.chat.completions.create(model="m", messages=HI, stream=True):
            (choice,) = chunk.choices
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            calls += choice.delta.tool_calls or []
            finish = choice.finish_reason or finish
    assert (text, reasoning, finish) == ("sé", "hm", "tool_calls")
    assert [(c.function.name, c.function.arguments) for c in calls if c.function] == [
        ("add", '{"a": 1}'),
        ("sub", "{}"),
    ]
    (turn,) = (await gateway.trajectory(ticket["session_id"])).turns
    assert turn.incomplete is None
    assert turn.first_token_at is not None
    assert turn.started_at <= turn.first_token_at <= turn.ended_at


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_of_a_call_is_a_turn(gateway: RunningGateway, engine: ScriptedEngine, stream: bool) -> None:
    engine.script(Reply("x"))
    ticket = await gateway.open()
    async with gateway.openai(ticket) as client:
        answer = await client.chat.completions.create(model="m", messages=HI, n=3, stream=stream)
        if isinstance(answer, openai.AsyncStream):
            async for _ in answer:
                pass
    made = await gateway.trajectory(ticket["session_id"])
    assert [(t.index, t.choice, t.incomplete) for t in made.turns] == [(0, 0, None), (0, 1, None), (0, 2, None)]
    assert [bytes(i - 10 for i in t.completion_token_ids[:-1]).decode() for t in made.turns] == ["x", "x #1", "x #2"]
    assert made.ledger.trained == made.ledger.sampled


@pytest.mark.parametrize("stream", [False, True])
async def test_text_completions_of_several_prompts_keep_each_prompt(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    ticket = await gateway.open()
    async with gateway.openai(ticket) as client:
        answer = await client.completions.create(model="m", prompt=["ab", "c"], n=2, stream=stream)
        if isinstance(answer, openai.AsyncStream):
            async for _ in answer:
                pass
    made = await gateway.trajectory(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == [None] * 4
    assert [t.prompt_token_ids.tolist() for t in made.turns] == [text_ids("ab")] * 2 + [text_ids("c")] * 2


async def test_a_linear_conversation_is_one_sequence(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    messages = list(HI)
    async with gateway.openai(ticket) as client:
        for k in range(4):
            engine.script(Reply(f"answer {k}"))
            answer = await client.chat.completions.create(model="m", messages=messages)
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": f"and {k}?"},
            ]
    made = await gateway.seal(ticket["session_id"])
    (sequence,) = made.sequences
    assert sequence.trained_tokens == made.ledger.sampled == 4 * 9
    assert len(made.turns) == 4


def _sync_agent(base_url: str, key: str) -> str:
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        whole = client.chat.completions.create(model="m", messages=HI).choices[0].message.content or ""
        parts = client.chat.completions.create(model="m", messages=HI, stream=True)
        return whole + "|" + "".join(c.choices[0].delta.content or "" for c in parts)


async def test_the_session_in_the_api_key_serves_a_fixed_base_url(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket = await gateway.open(session_id="team/task:0/with-slashes-and-more-characters")
    shown = await asyncio.to_thread(_sync_agent, f"{gateway.url}/v1", ticket["api_key"])
    assert shown == "ok|ok"
    assert await asyncio.to_thread(_sync_agent, ticket["base_url"], "EMPTY") == "ok|ok"
    assert len((await gateway.trajectory(ticket["session_id"])).turns) == 4


async def test_models_are_the_workers(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    async with gateway.openai(ticket) as client:
        assert [m.id async for m in await client.models.list()] == [engine.model]
