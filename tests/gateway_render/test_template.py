"""Rendering follows the transformers library's chat templates and vLLM's handling of messages."""

from __future__ import annotations

from datetime import datetime

import pytest

from rollway_gateway.render import Options, Refused, Template
from rollway_gateway.render.environment import content_format, environment
from rollway_gateway.render.messages import NotText, engine_messages, engine_tools
from rollway_wire.problems import BadRequest, Unprocessable
from tests.gateway_render import tiny


def rendered(source: str, messages=({"role": "user", "content": "x"},), **kwargs) -> str:
    made = Template(source, tiny.vocabulary(), now=lambda: datetime(2026, 1, 2))
    return made.text(list(messages), Options(kwargs=kwargs), prompt=False)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'é': '<&>'} | tojson }}", '{"é": "<&>"}'),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  1,\n  2\n ],\n "b": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "02 Jan 2026"),
        ("{{ bos_token }}{{ eos_token }}", "<|start|><|end|>"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueFalse"),
        ("{{ enable_thinking is defined }}", "False"),
    ],
)
def test_templates_see_what_they_see_elsewhere(source: str, expected: str) -> None:
    assert rendered(source) == expected


def test_template_arguments_reach_the_template() -> None:
    assert rendered("{{ enable_thinking }}", enable_thinking=False) == "False"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('roles must alternate') }}", "{{ messages.pop() }}", "{{ 1 + 'a' }}"]
)
def test_a_template_that_raises_refuses_the_messages(source: str) -> None:
    with pytest.raises(Refused, match="refuses these messages"):
        rendered(source)


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(Refused, match="unsafe"):
        rendered("{{ ''.__class__.__mro__ }}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for part in m['content'] %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for part in m.content | list %}{% endfor %}{% endfor %}", "openai"),
        ("{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% macro f(content) %}{% for part in content %}{% endfor %}{% endmacro %}", "openai"),
        ("{% for m in messages %}{% for call in m.tool_calls %}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_content_is_handed_over_as_vllm_does(source: str, expected: str) -> None:
    assert content_format(environment(), source) == expected


def test_messages_reach_the_template_as_vllm_gives_them() -> None:
    sent = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "extra": 1},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "refusal": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]},
        {"role": "assistant", "tool_calls": []},
    ]
    assert engine_messages(sent, "string") == [
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "assistant", "content": ""},
    ]
    assert engine_messages(sent, "openai")[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


@pytest.mark.parametrize("arguments", ["", None, "null", {}])
def test_empty_arguments_are_an_empty_object(arguments) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = engine_messages([{"role": "assistant", "tool_calls": [call]}], "string")
    assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x"}, "no role"),
        ({"role": "user", "content": 3}, "string or a list"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "no function"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "no JSON"),
    ],
)
def test_messages_no_chat_request_may_hold_are_refused(message: dict, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        engine_messages([message], "string")


def test_an_image_is_not_silently_dropped() -> None:
    with pytest.raises(NotText, match="image_url"):
        engine_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "string")


def test_tools_have_the_fields_of_vllms_request_model() -> None:
    assert engine_tools([]) is None
    assert engine_tools([{"type": "function", "function": {"parameters": {}, "name": "f", "note": 1}}]) == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": {}}}
    ]
    assert engine_tools([{"function": {"name": "f", "strict": True}}])[0]["function"]["strict"] is True


def test_calls_with_tools_use_the_template_named_for_them() -> None:
    made = Template({"default": "plain", "tool_use": "tools"}, tiny.vocabulary())
    assert made.text([], Options()) == "plain"
    assert made.text([], Options(tools=[{"function": {"name": "f"}}])) == "tools"


def test_several_templates_without_a_default_are_refused() -> None:
    with pytest.raises(Unprocessable, match="default"):
        Template({"rag": "x"}, tiny.vocabulary(), name="m")
