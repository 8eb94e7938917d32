"""Exact mode by what an engine can do: reasoning read, grammars asked for, tool calls that only the engine reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.shapes import events_of, merged, without_ids
from tests.kit.scripted_engine import EOS, Reply, ScriptedEngine, marked_ids
from tests.kit.scripted_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
NAMED = {"type": "function", "function": {"name": "add"}}
CALL = Reply("Let me see.", tool_calls=[("add", '{"a":1,"b":2}')])
STREAMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "usage": {"stream": True, "stream_options": {"include_usage": True}},
    "running usage": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


@asynccontextmanager
async def _serving(
    folder: Path, *, thinks: bool = False, calls: str = "hermes", scale_out: bool = True
) -> AsyncIterator[tuple[RunningGateway, ScriptedEngine]]:
    model = write_model(folder, thinks=thinks, calls=calls)
    async with (
        ScriptedEngine(folder=model, thinks=thinks, calls=calls, scale_out=scale_out) as engine,
        running_gateway(health_timeout_s=30) as gateway,
    ):
        (state,) = await gateway.add(engine)
        assert state["mode"] == "exact", state
        yield gateway, engine


async def _turns(
    gateway: RunningGateway, url: str, asked: list[dict[str, Any]], *, engine: ScriptedEngine
) -> list[dict[str, Any]]:
    """One call for each of ``asked``; the history as an agent keeps it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "1+2, please"}]
    for body in asked:
        answer = await gateway.http.post(f"{url}/chat/completions", json={"model": "m", "messages": messages, **body})
        assert answer.status_code == 200, answer.text
        messages.append(_message(answer.text, stream=bool(body.get("stream"))))
        calls = messages[-1].get("tool_calls") or ()
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
        messages += results or [{"role": "user", "content": "and?"}]
    return messages


def _message(text: str, *, stream: bool) -> dict[str, Any]:
    if not stream:
        whole: dict[str, Any] = json.loads(text)["choices"][0]["message"]
        return whole
    made: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": ""}
    for block in text.split("\n\n"):
        if not block.startswith("data: {"):
            continue
        for choice in json.loads(block[6:])["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning"):
                made[name] += delta.get(name) or ""
            for call in delta.get("tool_calls") or ():
                made.setdefault("tool_calls", []).extend([{"function": {"arguments": ""}}] if call.get("id") else [])
                mine = made["tool_calls"][call["index"]]
                mine |= {k: call[k] for k in ("id", "type") if call.get(k)}
                mine["function"]["name"] = call["function"].get("name") or mine["function"].get("name")
                mine["function"]["arguments"] += call["function"].get("arguments") or ""
    return made


THOUGHTS = [
    Reply("Three.", reasoning="1+2, so"), Reply("Né.", reasoning="A tool.", tool_calls=[("add", '{"a": 1}')]),
    Reply("Done 👍"),
]  # fmt: skip


@pytest.mark.parametrize("scale_out", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_reads_reasoning_is_read_alike(tmp_path: Path, stream: bool, scale_out: bool) -> None:
    """Known from its /derender, or learnt from the session's first turn, which goes as chat in any case."""
    async with _serving(tmp_path, thinks=True, scale_out=scale_out) as (gateway, engine):
        engine.script(*THOUGHTS)
        ticket = await gateway.open()
        messages = await _turns(gateway, ticket["base_url"], [{"tools": TOOLS, "stream": stream}] * 3, engine=engine)
        assert [path for path, _ in engine.requests] == [CHAT, TEXT, TEXT]
        assert [m["reasoning"] or None for m in messages if m["role"] == "assistant"] == ["1+2, so", "A tool.", None]
        made = await gateway.seal(ticket["session_id"])
    assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1), made.metadata
    said = [
        "1+2, so</think>Three.",
        'A tool.</think>Né.<tool_call>{"name":"add","arguments":{"a": 1}}</tool_call>',
    ]
    assert [t.completion_token_ids.tolist() for t in made.turns[:2]] == [[*marked_ids(s), EOS] for s in said]
    assert "reasoning is read as qwen3" in made.metadata["mode_reason"]


@pytest.mark.parametrize("how", STREAMS)
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("reply", THOUGHTS, ids=["thought", "thought and called", "nothing thought"])
async def test_an_answer_with_reasoning_is_the_chat_routes(
    tmp_path: Path, reply: Reply, hidden: bool, how: str
) -> None:
    async with _serving(tmp_path, thinks=True) as (gateway, engine):
        engine.script(Reply("first", reasoning="a"), reply, reply)
        ticket = await gateway.open()
        asked = {"model": "m", "tools": TOOLS, "include_reasoning": not hidden}
        first = await gateway.http.post(
            ticket["base_url"] + "/chat/completions", json={**asked, "messages": [{"role": "user", "content": "a"}]}
        )
        assert first.status_code == 200
        messages = [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "first", "reasoning": "a"},
            {"role": "user", "content": "b"},
        ]  # fmt: skip
        body = {**asked, "messages": messages, **STREAMS[how]}
        ours = await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)
        assert engine.requests[-1][0] == TEXT
        shown = body if not hidden else {**body, "include_reasoning": True}
        plain = await gateway.http.post(engine.url + CHAT, json=shown)
        if hidden:
            assert "1+2" not in ours.text
            assert "A tool." not in ours.text
        elif body.get("stream"):
            assert merged(events_of(ours.text)) == merged(events_of(plain.text))
        else:
            assert json.dumps(without_ids(ours.json())) == json.dumps(without_ids(plain.json()))


FORCED: dict[str, dict[str, Any]] = {
    "strict": {"tools": STRICT},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "named": {"tools": TOOLS, "tool_choice": NAMED},
    "strict, and JSON asked for": {"tools": STRICT, "response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("how", STREAMS)
@pytest.mark.parametrize("what", FORCED)
async def test_forced_and_strict_tools_are_sampled_with_the_chat_routes_grammar(
    tmp_path: Path, what: str, how: str
) -> None:
    """Told by /render for a stand-in of the messages, once for all turns that ask alike."""
    async with _serving(tmp_path) as (gateway, engine):
        engine.script(*[CALL] * 4)
        ticket = await gateway.open()
        asked = [FORCED[what] | STREAMS[how]] * 3
        await _turns(gateway, ticket["base_url"], asked, engine=engine)
        assert [path for path, _ in engine.requests] == [CHAT, TEXT, TEXT]
        (rendered,) = engine.rendered[1:]  # the first is the probe's
        assert [m["content"] for m in rendered["messages"]] == ["Hi"]
        for _, body in engine.requests[1:]:
            assert json.loads(body["structured_outputs"]["structural_tag"])["format"]["tags"][0]["name"] == "add"
            assert "response_format" not in body
        made = await gateway.seal(ticket["session_id"])
        assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1), made.metadata
        assert made.metadata["fidelity"] == {"turns": 3, "exact": 3}
        assert [t.finish_reason for t in made.turns] == ["stop" if what == "named" else "tool_calls"] * 3


async def test_without_render_they_go_as_chat_and_it_is_said(tmp_path: Path) -> None:
    async with _serving(tmp_path, scale_out=False) as (gateway, engine):
        engine.script(*[CALL] * 2)
        ticket = await gateway.open()
        await _turns(gateway, ticket["base_url"], [{"tools": STRICT}] * 2, engine=engine)
        assert [path for path, _ in engine.requests] == [CHAT, CHAT]
        made = await gateway.seal(ticket["session_id"])
    (branch,) = made.metadata["branches"]
    assert "a tool is strict" in branch["reason"]
    assert "the worker has no /render" in branch["reason"]


@pytest.mark.parametrize("grammar", ["none", "bare JSON", "no answer"])
async def test_a_grammar_that_is_not_known_sends_the_turn_as_chat(tmp_path: Path, grammar: str) -> None:
    async with _serving(tmp_path) as (gateway, engine):
        engine.grammar = {"none": {}, "bare JSON": {"json": {"type": "array"}}, "no answer": None}[grammar]
        engine.script(*[CALL] * 2)
        ticket = await gateway.open()
        await _turns(gateway, ticket["base_url"], [{"tools": STRICT}] * 2, engine=engine)
        made = await gateway.seal(ticket["session_id"])
    if grammar == "none":  # strict tools mean nothing to this engine
        assert made.mode == "exact"
        assert "structured_outputs" not in engine.requests[1][1]
    else:
        said = {"bare JSON": "bare JSON, which is not read here", "no answer": "/render answered 500"}[grammar]
        assert said in made.metadata["branches"][0]["reason"]


@pytest.mark.parametrize("how", STREAMS)
@pytest.mark.parametrize("reply", [CALL, Reply("all – good 👍"), Reply("")], ids=["called", "said", "nothing"])
async def test_tool_calls_of_another_form_are_read_by_the_engine(tmp_path: Path, reply: Reply, how: str) -> None:
    """Ids are sampled on completions and read by /derender; a stream is told once the answer is whole."""
    async with _serving(tmp_path, calls="function") as (gateway, engine):
        engine.script(Reply("first"), reply, reply)
        ticket = await gateway.open()
        asked: dict[str, Any] = {"tools": TOOLS, **STREAMS[how]}
        messages = await _turns(gateway, ticket["base_url"], [asked], engine=engine)
        body = {"model": "m", "messages": messages, **asked}
        urls = (ticket["base_url"] + "/chat/completions", engine.url + CHAT)
        ours, plain = [await gateway.http.post(url, json=body) for url in urls]
        assert [path for path, _ in engine.requests] == [CHAT, TEXT, CHAT]
        assert ours.headers["content-type"] == plain.headers["content-type"]
        if asked.get("stream"):
            assert _spaced(merged(events_of(ours.text))) == _spaced(merged(events_of(plain.text)))
        else:
            ours_shown, plain_shown = (json.dumps(without_ids(a.json())) for a in (ours, plain))
            assert _spaced([ours_shown]) == _spaced([plain_shown])
        made = await gateway.seal(ticket["session_id"])
    assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1), made.metadata
    assert "tool calls are read by /derender" in made.metadata["mode_reason"]


def _spaced(shown: list[str]) -> list[str]:
    """The engine's parser writes arguments anew, its script does not."""
    return [s.replace(r"{\"a\": 1, \"b\": 2}", r"{\"a\":1,\"b\":2}") for s in shown]


async def test_tool_calls_that_nobody_reads_go_as_chat(tmp_path: Path) -> None:
    async with _serving(tmp_path, calls="function", scale_out=False) as (gateway, engine):
        engine.script(CALL, CALL, Reply("done"))
        ticket = await gateway.open()
        await _turns(gateway, ticket["base_url"], [{"tools": TOOLS}] * 2, engine=engine)
        made = await gateway.seal(ticket["session_id"])
    assert [path for path, _ in engine.requests] == [CHAT, CHAT]
    assert "no parser is known" in made.metadata["branches"][0]["reason"]


async def test_an_engine_whose_derender_reads_otherwise_is_mirrored(tmp_path: Path) -> None:
    model = write_model(tmp_path, thinks=True)
    async with (
        ScriptedEngine(folder=model, thinks=True, scale_out=True) as engine,
        running_gateway(health_timeout_s=30) as gateway,
    ):
        engine.read = lambda text, asked: {"role": "assistant", "content": text.upper(), "reasoning": None}
        (state,) = await gateway.add(engine)
    assert state["mode"] == "mirror"
    assert "reads reasoning or tool calls out of its answers otherwise" in state["mode_reason"]
    assert engine.requests == [], "no question makes a worker sample"
