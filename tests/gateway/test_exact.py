"""Exact mode before the scripted engine: what was sampled is prompted with again, and the agent cannot tell."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_wire.tokens import Trajectory
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.shapes import events_of, merged, without_ids
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import BOS, EOS, Reply, ScriptedEngine, templated_ids, text_ids
from tests.kit.scripted_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = Reply(tool_calls=[("add", '{"a":1,"b":2}')], text="Let me see.")
"""Sampled without spaces, so a history rendered anew is another one."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=folder) as running:
        yield running


async def _agent(
    gateway: RunningGateway, ticket: dict[str, Any], turns: int, *, stream: bool = False,
    between: Callable[[], Awaitable[None]] | None = None, **asked: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """An agent that calls a tool in every turn but the last and keeps its history as the SDK gives it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "1+2, please"}]
    async with gateway.openai(ticket) as client:
        for _ in range(turns):
            answer = await _ask(client, messages, stream=stream, **asked)
            messages.append(answer)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in answer.get("tool_calls") or ()
            ] or [{"role": "user", "content": "and?"}]
            if between is not None:
                await between()
    return messages


async def _ask(client: Any, messages: list[dict[str, Any]], *, stream: bool, **asked: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": messages, "tools": TOOLS, **asked}
    if not stream:
        answer = await client.chat.completions.create(**body)
        message: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
        for call in message.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, indent=1)  # as SDKs like to write them anew
        return message
    async with client.chat.completions.stream(**body) as events:
        return (await events.get_final_completion()).choices[0].message.model_dump(exclude_none=True)


def _sampled(*replies: Reply) -> list[list[int]]:
    calls = [
        "".join(f'<tool_call>{{"name":"{n}","arguments":{a}}}</tool_call>' for n, a in r.tool_calls) for r in replies
    ]
    return [[*text_ids(r.text + c), EOS] for r, c in zip(replies, calls, strict=True)]


KEPT: dict[str, dict[str, Any]] = {
    "journal": {},
    "memory": {"durability": "memory"},
    "fsync": {"durability": "fsync"},
    "told again before every turn": {},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kept", KEPT)
async def test_a_linear_session_is_one_sequence_of_the_sampled_ids(
    engine: ScriptedEngine, kept: str, stream: bool
) -> None:
    """Wherever sessions are kept."""
    replies = [CALL, Reply("hm"), CALL, CALL, Reply("né – 👍")]
    async with running_gateway(**KEPT[kept]) as gateway:
        await gateway.add(engine)
        engine.script(*replies)
        ticket = await gateway.open()
        store, session_id = gateway.inside.store, ticket["session_id"]

        async def leave_to_the_journal() -> None:
            await eventually(lambda: store.put_away(store.get(session_id)), "nothing of it is in memory alone")

        between = leave_to_the_journal if kept == "told again before every turn" else None
        await _agent(gateway, ticket, len(replies), stream=stream, between=between)
        assert (store.find(session_id) is None) == (between is not None)
        made = await gateway.seal(ticket["session_id"])
    assert [path for path, _ in engine.requests] == [CHAT, *[TEXT] * 4]
    assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1)
    assert [t.completion_token_ids.tolist() for t in made.turns] == _sampled(*replies)
    sampled = [i for ids in _sampled(*replies) for i in ids]
    (row,) = made.sequences
    assert [i for i, m in zip(row.token_ids, row.loss_mask, strict=True) if m] == sampled
    assert made.metadata["fidelity"] == {"turns": 5, "exact": 5}
    assert made.metadata["certificate"]["mode"] == "exact"
    assert made.metadata["branches"] == []
    assert made.ledger.trained == made.ledger.sampled == len(sampled)


async def test_the_same_session_mirrored_breaks_apart(engine: ScriptedEngine) -> None:
    """What exact mode prevents: the engine renders the calls anew, so the sampled ids are not in its next prompt."""
    replies = [CALL, Reply("hm"), CALL, CALL, Reply("done")]
    async with running_gateway(mode="mirror") as gateway:
        await gateway.add(engine)
        engine.script(*replies)
        ticket = await gateway.open()
        await _agent(gateway, ticket, len(replies))
        made = await gateway.seal(ticket["session_id"])
    assert (made.mode, len(made.sequences)) == ("mirror", 4)
    assert made.metadata["fidelity"] == {"turns": 5, "exact": 0}
    assert made.metadata["mode_reason"] == "mirror mode is set"


async def test_an_agent_that_prompts_with_ids_of_its_own_is_exact_and_one_that_prompts_with_text_is_not(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.script(Reply("four"), Reply("five"), Reply("six"))
    ids, text = await gateway.open(), await gateway.open()
    async with gateway.openai(ids) as client:
        prompt = [BOS, *text_ids("two and two?")]
        for _ in range(2):
            answer = await client.completions.create(model="m", prompt=prompt, extra_body={"return_token_ids": True})
            prompt = [*prompt, *answer.choices[0].model_extra["token_ids"], *text_ids(" and?")]
    async with gateway.openai(text) as client:
        await client.completions.create(model="m", prompt="two and two?")
    made, other = await gateway.seal(ids["session_id"]), await gateway.seal(text["session_id"])
    assert (made.mode, made.metadata["fidelity"], len(made.sequences)) == ("exact", {"turns": 2, "exact": 2}, 1)
    assert (other.mode, other.metadata["fidelity"]) == ("mirror", {"turns": 1, "exact": 0})
    assert "own text" in other.metadata["branches"][0]["reason"]


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "log-probs": {"logprobs": True},
    "top log-probs": {"logprobs": True, "top_logprobs": 2},
    "log-probs by id": {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
    "token ids": {"return_token_ids": True},
    "two choices": {"n": 2},
    "no tools": {"tools": None},
    "tools not to be called": {"tool_choice": "none"},
    "json asked for": {"response_format": {"type": "json_object"}},
}
STREAMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "usage": {"stream": True, "stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("how", STREAMS)
@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("reply", [Reply("all – good 👍"), Reply("")], ids=["text", "nothing"])
async def test_an_exact_answer_is_the_chat_routes(
    gateway: RunningGateway, engine: ScriptedEngine, reply: Reply, what: str, how: str
) -> None:
    """The second turn, asked of the gateway with ids and of the engine as chat, reads the same."""
    asked = {"model": "m", "tools": TOOLS, **SHAPES[what], **STREAMS[how]}
    asked = {name: value for name, value in asked.items() if value is not None}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    ticket = await gateway.open()
    engine.script(Reply("first"), reply, reply)
    first = await gateway.http.post(ticket["base_url"] + "/chat/completions", json={**asked, "messages": messages})
    assert first.status_code == 200
    messages += [{"role": "assistant", "content": "first"}, {"role": "user", "content": "b"}]
    urls = (ticket["base_url"] + "/chat/completions", engine.url + CHAT)
    ours, plain = [await gateway.http.post(url, json={**asked, "messages": messages}) for url in urls]
    assert engine.requests[1][0] == TEXT
    assert ours.headers["content-type"] == plain.headers["content-type"]
    if asked.get("stream"):
        assert merged(events_of(ours.text)) == merged(events_of(plain.text))
    else:
        assert json.dumps(without_ids(ours.json())) == json.dumps(without_ids(plain.json()))
    assert (await gateway.settled(ticket["session_id"])).mode == "exact"


async def test_calls_at_once_and_edited_histories_are_branches_of_their_own(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """Two questions after one answer share its tokens as context; a rewritten answer begins a new tree."""
    engine.script(*[Reply(t) for t in ("one", "two", "three", "four")])
    ticket = await gateway.open()
    start = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"}]
    async with gateway.openai(ticket) as client:
        for messages in (
            start[:1], [*start, {"role": "user", "content": "b"}], [*start, {"role": "user", "content": "c"}],
            [start[0], {"role": "assistant", "content": "something else"}, {"role": "user", "content": "d"}],
        ):  # fmt: skip
            await _ask(client, messages, stream=False)
    made = await gateway.seal(ticket["session_id"])
    assert [path for path, _ in engine.requests] == [CHAT, TEXT, TEXT, CHAT]
    assert (made.mode, len(made.sequences)) == ("exact", 3)
    assert (
        made.ledger.trained
        == made.ledger.sampled
        == sum(map(len, _sampled(*map(Reply, ("one", "two", "three", "four")))))
    )


async def _second_turn(gateway: RunningGateway, engine: ScriptedEngine, **asked: Any) -> Trajectory:
    """A session of three turns whose second asks in a special way."""
    engine.script(CALL, CALL, Reply("done"))
    ticket = await gateway.open()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "1+2, please"}]
    async with gateway.openai(ticket) as client:
        for special in ({}, asked, {}):
            messages.append(await _ask(client, messages, stream=False, **special))
            calls = messages[-1].get("tool_calls") or ()
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
            messages += results or [{"role": "user", "content": "and?"}]
    return await gateway.seal(ticket["session_id"])


ONLY_CHAT: dict[str, tuple[dict[str, Any], str, int]] = {
    "a call is forced": ({"tool_choice": "required"}, "tool_choice forces a call", 2),
    "an own template": ({"extra_body": {"chat_template": "x"}}, "chat_template is given", 2),
    "no header": ({"extra_body": {"add_generation_prompt": False}}, "add_generation_prompt is off", 2),
}
"""Request, reason, and how many sequences the session becomes."""


@pytest.mark.parametrize("what", ONLY_CHAT)
async def test_what_only_chat_can_serve_is_passed_on_and_said(
    gateway: RunningGateway, engine: ScriptedEngine, what: str
) -> None:
    """One turn of the session is not exact, and its trajectory says which and why; the others stay exact."""
    asked, reason, sequences = ONLY_CHAT[what]
    made = await _second_turn(gateway, engine, **asked)
    assert engine.requests[1][0] == CHAT
    assert (made.mode, made.metadata["fidelity"]) == ("mirror", {"turns": 3, "exact": 2})
    assert len(made.sequences) == sequences
    (branch,) = made.metadata["branches"]
    assert branch["turn_id"] == made.turns[1].turn_id
    assert reason in branch["reason"]
    assert made.incomplete is None


async def test_ids_that_the_engine_refuses_go_as_chat(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """And the session goes on from what the engine then prompted with."""
    engine.takes_ids = False
    made = await _second_turn(gateway, engine)
    assert [path for path, _ in engine.requests] == [CHAT] * 3
    assert made.metadata["fidelity"] == {"turns": 3, "exact": 1}
    assert "refused prompt ids with 400" in made.metadata["branches"][0]["reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_outgrows_the_context_is_refused_as_chat_refuses(folder: Path, stream: bool) -> None:
    async with ScriptedEngine(folder=folder, context=200) as engine, running_gateway() as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": stream}
        url = ticket["base_url"] + "/chat/completions"
        assert (await gateway.http.post(url, json=body)).status_code == 200
        body["messages"] += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "b" * 200}]
        answer = await gateway.http.post(url, json=body)
        assert answer.status_code == 400
        assert "maximum context length is 200 tokens" in answer.json()["error"]["message"]
        made = await gateway.settled(ticket["session_id"])
    assert (made.mode, len(made.turns), made.metadata["failed_calls"]) == ("exact", 1, 1)


async def _state(gateway: RunningGateway, engine: ScriptedEngine, **spec: Any) -> dict[str, Any]:
    (state,) = await gateway.add(engine, **spec)
    return state


async def test_a_worker_says_which_mode_it_serves_in_and_why(folder: Path, tmp_path: Path) -> None:
    async with running_gateway() as gateway:
        async with ScriptedEngine() as bare:
            state = await _state(gateway, bare)
            assert (state["mode"], state["healthy"]) == ("mirror", True)
            assert "does not say where its model lies" in state["mode_reason"]
            state = await _state(gateway, bare, tokenizer=str(tmp_path / "nowhere"))
            assert "is no folder on this machine" in state["mode_reason"]
            state = await _state(gateway, bare, tokenizer=str(tmp_path))
            assert "tokenizer.json" in state["mode_reason"]
        async with ScriptedEngine(folder=folder) as other:
            other.render = lambda messages: [BOS, *templated_ids(messages)]
            state = await _state(gateway, other)
            assert (state["mode"], state["healthy"]) == ("mirror", True)
            assert "renders or tokenises otherwise" in state["mode_reason"]
        async with ScriptedEngine(folder=folder) as same:
            state = await _state(gateway, same)
            assert (state["mode"], state["healthy"]) == ("exact", True)
            assert other.requests == same.requests == [], "no question makes a worker sample"


async def test_where_exact_mode_is_demanded_a_worker_that_cannot_is_not_healthy(folder: Path) -> None:
    async with (
        running_gateway(mode="exact") as gateway,
        ScriptedEngine() as bare,
        ScriptedEngine(folder=folder) as good,
    ):
        state = await _state(gateway, bare)
        assert not state["healthy"]
        assert "exact mode is set, and it cannot be: the worker does not say" in state["detail"]
        assert (await _state(gateway, good))["healthy"]


async def test_calls_are_not_parsed_where_the_engine_has_no_parser(folder: Path) -> None:
    """Then it refuses tools itself, and without tools shows the text as it is."""
    async with ScriptedEngine(folder=folder) as engine, running_gateway() as gateway:
        engine.parses = False
        assert (await _state(gateway, engine))["mode"] == "exact"
        ticket = await gateway.open()
        url, body = (
            ticket["base_url"] + "/chat/completions",
            {"model": "m", "messages": [{"role": "user", "content": "a"}]},
        )
        refused = await gateway.http.post(url, json={**body, "tools": TOOLS})
        assert refused.status_code == 400
        engine.script(Reply("x"), CALL)
        await gateway.http.post(url, json=body)
        body["messages"] += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "b"}]
        said = (await gateway.http.post(url, json=body)).json()["choices"][0]
        assert said["message"]["content"].endswith("</tool_call>")
        assert (said["finish_reason"], engine.requests[-1][0]) == ("stop", TEXT)


async def test_a_worker_that_reads_its_answers_otherwise_is_mirrored_from_the_first_that_shows_it(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """Here one whose reasoning has no marks: the text of an answer to ids would show the agent reasoning as content."""
    engine.script(Reply("so", reasoning="Hm."), Reply("so", reasoning="Hm."))
    ticket = await gateway.open()
    messages = await _agent(gateway, ticket, 2)
    assert messages[1]["reasoning"] == messages[3]["reasoning"] == "Hm."
    assert [path for path, _ in engine.requests] == [CHAT, CHAT]
    made = await gateway.seal(ticket["session_id"])
    assert (made.mode, made.incomplete) == ("mirror", None)
    assert "reads reasoning or tool calls out of its answers otherwise" in made.metadata["mode_reason"]
    assert made.metadata["certificate"]["mode"] == "exact"


async def test_a_worker_that_prompts_otherwise_than_it_tokenises_is_mirrored_from_its_first_chat(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """As one does whose chats get template arguments by its configuration."""
    engine.render = lambda messages: [BOS, *templated_ids(messages)]
    ticket = await gateway.open()
    await _agent(gateway, ticket, 2)
    assert [path for path, _ in engine.requests] == [CHAT, CHAT]
    made = await gateway.seal(ticket["session_id"])
    assert (made.mode, made.incomplete) == ("mirror", None)
    assert "other ids than its template renders" in made.metadata["mode_reason"]
