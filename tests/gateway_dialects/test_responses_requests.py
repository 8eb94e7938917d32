"""Responses requests as chat requests, the requests that are refused by name, and responses that go on."""

from __future__ import annotations

from typing import Any

import pytest

from rollway_gateway.dialects.responses.dialect import Responses
from rollway_gateway.dialects.responses.kept import KeptResponse, KeptResponses
from rollway_gateway.openai_errors import AgentError
from tests.gateway_dialects.chats import call, chunk, events, kept, whole

USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {"type": "function", "function": {k: TOOL[k] for k in ("name", "parameters", "strict")}}


def chat_of(**fields: Any) -> dict[str, Any]:
    return Responses().open({"model": "m", "input": "hi", **fields}, kept()).chat


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"max_output_tokens": 9, "temperature": 0.0, "top_p": 0.5}, {"max_tokens": 9, "temperature": 0.0, "top_p": 0.5}),
    ({"user": "u", "seed": 1, "stop": ["x"], "top_k": 3}, {"user": "u", "seed": 1, "stop": ["x"], "top_k": 3}),
    ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    ({"stream": False, "background": False, "truncation": "disabled", "unheard_of": None}, {}),
    ({"metadata": {"a": "b"}, "service_tier": "auto", "store": False, "prompt_cache_key": "k"}, {}),
    ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
    ({"tools": [TOOL]}, {"tools": [CHAT_TOOL], "tool_choice": "auto"}),
    (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [CHAT_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}},
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    ),
    ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}},
        {"response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        }},
    ),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
    ({"include": ["reasoning.encrypted_content"], "top_logprobs": 3}, {}),
    ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": 0}),
    (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 4},
        {"logprobs": True, "top_logprobs": 4},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "chat"), FIELDS)
def test_fields(fields: dict[str, Any], chat: dict[str, Any]) -> None:
    assert chat_of(**fields) == {"model": "m", "messages": [USER], **chat}


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}],
        **fields,
    }  # fmt: skip


def called(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}", **fields}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **fields}


CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}

ITEMS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([USER], [USER]),
    ([{"type": "message", **USER}], [USER]),
    (
        [{"role": "developer", "content": "d"}, {"role": "system", "content": [{"type": "input_text", "text": "s"}]}],
        [{"role": "developer", "content": "d"}, {"role": "system", "content": "s"}],
    ),
    (
        [{"role": "user", "content": [
            {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "https://x", "detail": "low"},
        ]}],
        [{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x", "detail": "low"}},
        ]}],
    ),
    ([USER, {"role": "assistant", "content": "easy"}, USER], [USER, {"role": "assistant", "content": "easy"}, USER]),
    # One turn's items are one message, in whatever order they came.
    (
        [thought("hm"), said("a"), called("c1"), called("c2")],
        [{"role": "assistant", "reasoning": "hm", "content": "a",
          "tool_calls": [{"id": "c1", **CALL}, {"id": "c2", **CALL}]}],
    ),
    ([called("c1"), said("a")], [{"role": "assistant", "tool_calls": [{"id": "c1", **CALL}], "content": "a"}]),
    # Without ids that say otherwise, a second text is a second message.
    ([said("a"), said("b")], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
    (
        [said("a", id="msg_T_0"), called("c1", id="fc_T_1"), said("b", id="msg_T_2")],
        [{"role": "assistant", "content": "ab", "tool_calls": [{"id": "c1", **CALL}]}],
    ),
    (
        [called("c1", id="fc_T_0"), thought("hm", id="rs_U_0"), said("b", id="msg_U_1")],
        [{"role": "assistant", "tool_calls": [{"id": "c1", **CALL}]},
         {"role": "assistant", "reasoning": "hm", "content": "b"}],
    ),
    (
        [called("c1"), {"type": "function_call_output", "call_id": "c1", "output": "3"}, said("three")],
        [{"role": "assistant", "tool_calls": [{"id": "c1", **CALL}]},
         {"role": "tool", "tool_call_id": "c1", "content": "3"}, {"role": "assistant", "content": "three"}],
    ),
    (
        [{"type": "function_call_output", "call_id": "c1", "output": [
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"},
            {"type": "input_text", "text": "b"},
        ]}],
        [{"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
         {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}],
    ),
    (
        [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]}, said("x")],
        [{"role": "assistant", "reasoning": "s", "content": "x"}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("items", "messages"), ITEMS)
def test_items(items: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    assert chat_of(input=items)["messages"] == messages


def test_instructions_stand_first() -> None:
    assert chat_of(instructions="be brief")["messages"] == [{"role": "system", "content": "be brief"}, USER]


def test_an_unfinished_last_message_is_continued() -> None:
    chat = chat_of(input=[USER, said("The", status="incomplete")])
    assert chat["messages"][-1] == {"role": "assistant", "content": "The"}
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"input": [{"type": kind, **fields}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": ["x"]}, "input[0]"),
    (item("message", role="tool", content="x"), "input[0].role"),
    (item("message", role="user"), "input[0].content"),
    (item("message", role="user", content=[{"type": "input_file", "file_id": "f"}]), "input[0].content[0].type"),
    (item("message", role="user", content=[{"type": "input_image", "file_id": "f"}]), "input[0].content[0].file_id"),
    (item("message", role="user", content=[{"type": "input_audio"}]), "input[0].content[0].type"),
    (item("message", role="assistant", content=[{"type": "input_image", "image_url": "u"}]), "input[0].content"),
    (item("function_call", call_id="c", name="f"), "input[0].arguments"),
    (item("function_call", call_id="c", name="f", arguments="{}", namespace="n"), "input[0].namespace"),
    (item("function_call_output", call_id="c"), "input[0].output"),
    (item("function_call_output", output="x"), "input[0].call_id"),
    (item("reasoning", encrypted_content="x"), "input[0].encrypted_content"),
    (item("item_reference", id="x"), "input[0].type"),
    (item("web_search_call"), "input[0].type"),
    (item("custom_tool_call"), "input[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"text": {"format": {"type": "grammar"}}}, "text"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"json": {}}}, "structured_outputs"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": "high"}, "reasoning"),
    ({"include": ["unheard.of"]}, "include"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{}]}, "context_management"),
    ({"previous_input_messages": [{}]}, "previous_input_messages"),
    ({"unheard_of": 1}, "unheard_of"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(AgentError) as refusal:
        chat_of(**fields)
    assert (refusal.value.status, refusal.value.param) == (400, param)
    if "type" in param.split(".")[-1:]:
        assert repr(_kind_refused(fields)) in refusal.value.message


def _kind_refused(fields: dict[str, Any]) -> str:
    """The type that the message must name: the deepest one given."""
    (value,) = (v for k, v in fields.items() if k in ("input", "tools"))
    entry = value[0]
    while isinstance(entry.get("content"), list):
        entry = entry["content"][0]
    kind: str = entry["type"]
    return kind


def test_a_chain_of_responses_is_one_conversation() -> None:
    """Instructions are not carried over; function calls and reasoning are."""
    store = kept()
    body: dict[str, Any] = {"input": "hi", "instructions": "old", "tools": [TOOL]}
    first = Responses().open(body, store).answer(whole(reasoning="hm", calls=[call(0)], answer_id="chatcmpl-A"))
    output = {"type": "function_call_output", "call_id": "call_0", "output": "3"}
    body = {"input": [output], "instructions": "new", "previous_response_id": first["id"], "tools": [TOOL]}
    exchange = Responses().open(body, store)
    assert exchange.chat["messages"] == [
        {"role": "system", "content": "new"}, USER,
        {"role": "assistant", "reasoning": "hm", "tool_calls": [call(0)]},
        {"role": "tool", "tool_call_id": "call_0", "content": "3"},
    ]  # fmt: skip
    encoder = exchange.stream()
    encoder.feed({**chunk({"content": "three"}, finish="stop"), "id": "chatcmpl-B"})
    second = events(encoder.end())[-1]["response"]
    assert second["previous_response_id"] == first["id"] == "resp_A"
    third = Responses().open({"input": "why", "previous_response_id": second["id"]}, store)
    assert third.chat["messages"][3:] == [{"role": "assistant", "content": "three"}, {"role": "user", "content": "why"}]


@pytest.mark.parametrize("why", ["unknown", "not stored", "failed", "dropped", "circular"])
def test_a_response_that_is_not_kept_cannot_be_continued(why: str) -> None:
    store = kept(200)
    if why == "not stored":
        Responses().open({"input": "hi", "store": False}, store).answer(whole("x", answer_id="chatcmpl-A"))
    if why == "failed":
        encoder = Responses().open({"input": "hi"}, store).stream()
        encoder.feed({**chunk({"content": "x"}), "id": "chatcmpl-A"})
    if why == "dropped":
        for n in "ABC":
            Responses().open({"input": "x" * 100}, store).answer(whole("x", answer_id=f"chatcmpl-{n}"))
    if why == "circular":
        store.keep("resp_A", KeptResponse("resp_A", b"[]"))
    with pytest.raises(AgentError, match="'resp_A' not found") as refusal:
        Responses().open({"input": "hi", "previous_response_id": "resp_A"}, store)
    assert refusal.value.status == 404


def test_the_store_keeps_the_newest_within_its_size() -> None:
    store = KeptResponses(10)
    for name in "abc":
        store.keep(name, KeptResponse(None, b"1234"))
    store.keep("c", KeptResponse(None, b"123456"))
    assert [name for name in "abc" if store.find(name)] == ["b", "c"]
    store.clear()
    assert store.find("c") is None


def test_a_response_cut_off_is_incomplete_whole_and_streamed() -> None:
    exchange = Responses().open({"input": "hi"}, kept())
    made = exchange.answer(whole("x", finish="length"))
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    encoder = exchange.stream()
    last = events(encoder.feed(chunk({"content": "x"}, finish="length")) + encoder.end())[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
