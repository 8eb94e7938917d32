"""Messages requests as chat requests, and the requests that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from rollway_gateway.dialects.messages.dialect import Messages
from rollway_gateway.dialects.messages.request import to_chat, to_count
from rollway_gateway.openai_errors import AgentError
from tests.gateway_dialects.chats import ID, call, chunk, events, kept, whole

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "parameters": TOOL["input_schema"]}}
PNG = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 8, "messages": HI, **fields}


def chat_of(**fields: Any) -> dict[str, Any]:
    """The chat request, without what every request has."""
    chat = to_chat(asked(**fields))
    assert (chat.pop("model"), chat.pop("max_tokens")) == ("m", 8)
    if chat["messages"] == HI:
        del chat["messages"]
    return chat


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.5, "top_p": 0.9, "top_k": 7}, {"temperature": 0.5, "top_p": 0.9, "top_k": 7}),
    ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"seed": 3, "min_p": 0.1, "cache_salt": "x"}, {"seed": 3, "min_p": 0.1, "cache_salt": "x"}),
    ({"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}}, {}),
    ({"temperature": None, "tools": None, "thinking": None, "unheard_of": None}, {}),
    (
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    ({"tools": [TOOL]}, {"tools": [CHAT_TOOL], "tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tools": [CHAT_TOOL], "tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tools": [CHAT_TOOL], "tool_choice": "required"}),
    ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tools": [CHAT_TOOL], "tool_choice": "none"}),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "add"}},
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": [CHAT_TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    ),
    (
        {"tools": [{"type": "custom", "name": "f", "description": "d", "strict": True, "input_schema": {}}]},
        {
            "tools": [{
                "type": "function",
                "function": {"name": "f", "description": "d", "strict": True, "parameters": {"type": "object"}},
            }],
            "tool_choice": "auto",
        },
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"chat_template_kwargs": {"enable_thinking": True}}),
    ({"thinking": {"type": "adaptive"}}, {"chat_template_kwargs": {"enable_thinking": True}}),
    ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
    (
        {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
        {"chat_template_kwargs": {"enable_thinking": False, "x": 1}},
    ),
    (
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"chat_template_kwargs": {"enable_thinking": True}, "include_reasoning": False},
    ),
    (
        {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {
            "reasoning_effort": "low",
            "response_format": {
                "type": "json_schema", "json_schema": {"name": "json_schema", "schema": {"type": "object"}},
            },
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "chat"), FIELDS)
def test_fields(fields: dict[str, Any], chat: dict[str, Any]) -> None:
    assert chat_of(**fields) == chat


MESSAGES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"system": "be brief"}, [{"role": "system", "content": "be brief"}, *HI]),
    (
        {"system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc=1"}, {"type": "text", "text": "a"},
            {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
        ]},
        [{"role": "system", "content": "ab"}, *HI],
    ),
    (
        {"messages": [*HI, {"role": "system", "content": "now"}, {"role": "user", "content": "go"}]},
        [*HI, {"role": "system", "content": "now"}, {"role": "user", "content": "go"}],
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}]},
        [{"role": "user", "content": "one"}],
    ),
    (
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image", "source": PNG},
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        ]}]},
        [{"role": "user", "content": [
            {"type": "text", "text": "see"}, IMAGE, {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ]}],
    ),
    (
        {"messages": [
            *HI,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "a", "citations": None}, {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": [1, "é"]}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "text", "text": "and"},
                {"type": "tool_result", "tool_use_id": "t1", "content": "3"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [
                    {"type": "text", "text": "no"}, {"type": "image", "source": PNG}, {"type": "text", "text": "way"},
                ]},
            ]},
        ]},
        [
            *HI,
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "reasoning": "hm",
                "tool_calls": [
                    {"id": "t1", "type": "function",
                     "function": {"name": "add", "arguments": '{"a": [1, "\\u00e9"]}'}},
                    {"id": "t2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "3"},
            {"role": "tool", "tool_call_id": "t2", "content": "no\nway"},
            {"role": "user", "content": [IMAGE]},
            {"role": "user", "content": "and"},
        ],
    ),
    (
        {"messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": ""}]}, *HI]},
        [*HI, {"role": "assistant", "content": ""}, *HI],
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
        [{"role": "tool", "tool_call_id": "t", "content": ""}],
    ),
    (
        {"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {"INVALID_JSON": '{"a": '}},
        ]}, *HI]},
        [{"role": "assistant", "tool_calls": [
            {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a": '}},
        ]}, *HI],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "messages"), MESSAGES)
def test_messages(fields: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    assert chat_of(**fields) == {"messages": messages}


def test_a_last_assistant_message_is_continued() -> None:
    messages = [*HI, {"role": "assistant", "content": "The answer is ("}]
    assert chat_of(messages=messages) == {
        "messages": messages, "add_generation_prompt": False, "continue_final_message": True,
    }  # fmt: skip


def block(kind: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [{"type": kind, **fields}]}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "8"}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    (block("text"), "messages[0].content[0].text"),
    (block("text", text="x", citations=[{"type": "char_location"}]), "messages[0].content[0].citations"),
    (block("tool_use", id="t", name="f", input={}), "messages[0].content[0].type"),
    (block("tool_use", "assistant", id="t", name="f", input="{}"), "messages[0].content[0].input"),
    (block("tool_use", "assistant", id="t", name="f", input={}, novel="x"), "messages[0].content[0].novel"),
    (block("tool_result", "assistant", tool_use_id="t"), "messages[0].content[0].type"),
    (block("tool_result"), "messages[0].content[0].tool_use_id"),
    (block("tool_result", tool_use_id="t", is_error="no"), "messages[0].content[0].is_error"),
    (block("tool_result", tool_use_id="t", content=[{"type": "document"}]), "messages[0].content[0].content[0].type"),
    (block("image", source={"type": "file", "file_id": "f"}), "messages[0].content[0].source.type"),
    (block("image", source={"type": "base64", "data": "x"}), "messages[0].content[0].source.media_type"),
    (block("document", source={}), "messages[0].content[0].type"),
    (block("server_tool_use", "assistant"), "messages[0].content[0].type"),
    (block("search_result"), "messages[0].content[0].type"),
    ({"messages": [*HI, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]}, "messages"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": 3}, "system"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
    ({"tools": [{**TOOL, "novel": 1}]}, "tools[0].novel"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "between_tools"}}, "thinking"),
    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "immense"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
    ({"output_config": {"task_budget": 3}}, "output_config.task_budget"),
    ({"speed": "fast"}, "speed"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"context_management": {"edits": []}}, "context_management"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(AgentError) as refusal:
        to_chat(asked(**fields))
    assert (refusal.value.status, refusal.value.param) == (400, param)
    assert param.split("[")[0].split(".")[0] in refusal.value.message


def test_counting_asks_with_what_the_template_renders() -> None:
    body = asked(system="s", tools=[TOOL], thinking={"type": "disabled"}, temperature=1.0)
    assert to_count(body) == {
        "messages": [{"role": "system", "content": "s"}, *HI], "tools": [CHAT_TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    with pytest.raises(AgentError, match="container"):
        to_count({"messages": HI, "container": "c"})


STOPS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"content": "x"}, "end_turn", None),
    ({"content": "x", "finish": "length"}, "max_tokens", None),
    ({"content": "x", "stop": "END"}, "stop_sequence", "END"),
    ({"content": "x", "stop": "not asked for"}, "end_turn", None),
    ({"content": "x", "stop": 151645}, "end_turn", None),
    ({"calls": [call(0)], "finish": "tool_calls"}, "tool_use", None),
    ({"calls": [call(0)], "finish": "stop"}, "tool_use", None),
    ({"calls": [call(0)], "finish": "length"}, "max_tokens", None),
]


@pytest.mark.parametrize(("made", "reason", "sequence"), STOPS)
def test_why_it_stopped_whole_and_streamed(made: dict[str, Any], reason: str, sequence: str | None) -> None:
    exchange = Messages().open(asked(stop_sequences=["END"]), kept())
    said = exchange.answer(whole(**made))
    assert (said["stop_reason"], said.get("stop_sequence")) == (reason, sequence)
    encoder = exchange.stream()
    delta = {"content": made.get("content"), "tool_calls": [{**c, "index": 0} for c in made.get("calls", ())]}
    sent = encoder.feed(chunk(delta, finish=made.get("finish", "stop"), stop=made.get("stop"))) + encoder.end()
    assert events(sent)[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ('{"a": 1}', {"a": 1}),
    ("", {}),
    ("  ", {}),
    ("{}", {}),
    ('{"a": ', {"INVALID_JSON": '{"a": '}),
    ('"Paris"', {"INVALID_JSON": '"Paris"'}),
    ("[1]", {"INVALID_JSON": "[1]"}),
]


@pytest.mark.parametrize(("arguments", "given"), ARGUMENTS)
def test_a_tool_input_is_always_an_object_and_comes_back_as_sampled(arguments: str, given: dict[str, Any]) -> None:
    said = Messages().open(asked(), kept()).answer(whole(calls=[call(0, "f", arguments)], finish="tool_calls"))
    (block_,) = said["content"]
    assert block_ == {"type": "tool_use", "id": "call_0", "name": "f", "input": given}
    again = to_chat(asked(messages=[*HI, {"role": "assistant", "content": said["content"]}, *HI]))
    echoed = again["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert echoed == (arguments if "INVALID_JSON" in given or given else "{}")


def test_an_empty_answer_is_one_empty_text() -> None:
    said = Messages().open(asked(), kept()).answer(whole(""))
    assert said["content"] == [{"type": "text", "text": ""}]


def test_tokens_from_the_cache_are_counted_beside_the_input() -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}
    said = Messages().open(asked(), kept()).answer(whole("x", usage=usage))
    assert said["usage"] == {"input_tokens": 24, "output_tokens": 2, "cache_read_input_tokens": 16}
    assert said["id"] == ID
