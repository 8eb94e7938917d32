"""An echo is recognised however an SDK wrote it down, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from rollway_gateway.tree.canonical import call_ids, digest, reasoning_style


def said(**fields):
    return {"role": "assistant", **fields}


def called(arguments, **fields):
    return said(
        tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}], **fields
    )


@pytest.mark.parametrize(
    ("given_out", "echoed"),
    [
        pytest.param(said(content="a b"), said(content=[{"type": "text", "text": "a b"}]), id="text as a part"),
        pytest.param(said(content="a b"), said(content=[{"type": "text", "text": "a "}, "b"]), id="split parts"),
        pytest.param(said(content="hi"), said(content=[{"type": "output_text", "text": "hi"}]), id="Responses part"),
        pytest.param(said(content="\n\nhi "), said(content="hi"), id="stripped"),
        pytest.param(called("{}", content=None), called("{}", content=""), id="null and empty"),
        pytest.param(called("{}", content=None), called("{}"), id="null and missing"),
        pytest.param(called("{}", content=None), called("{}", content=[]), id="null and no parts"),
        pytest.param(called('{"a": 1, "b": [2]}'), called('{"b":[2],"a":1}'), id="re-keyed and re-spaced"),
        pytest.param(called('{"a": "é"}'), called('{"a": "\\u00e9"}'), id="escaped"),
        pytest.param(called('{"a": 1.0}'), called('{"a": 1}'), id="whole floats, as JavaScript writes them"),
        pytest.param(called('{"a": 1}'), called({"a": 1}), id="arguments as an object"),
        pytest.param(called("{}"), called(""), id="no arguments"),
        pytest.param(called("not json"), called(" not json\n"), id="arguments that are no JSON"),
        pytest.param(
            called("{}"),
            {**called("{}"), "refusal": None, "annotations": [], "audio": None, "function_call": None, "id": "m1"},
            id="provider fields",
        ),
        pytest.param(said(content="hi", reasoning="so"), said(content="hi"), id="dropped reasoning"),
        pytest.param(said(content="<think>so</think>\n\nhi"), said(content="hi"), id="dropped inline reasoning"),
        pytest.param(said(content="so\n</think>\n\nhi"), said(content="hi"), id="reasoning opened by the prompt"),
        pytest.param(
            said(content=[{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "hi"}]),
            said(content="hi"),
            id="thinking part",
        ),
    ],
)
def test_the_same_answer_in_other_words_of_json_is_the_same(given_out, echoed) -> None:
    assert digest(given_out) == digest(echoed)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said(content="a"), said(content="b")),
        (said(content="a"), {"role": "user", "content": "a"}),
        (called('{"a": 1}'), called('{"a": 2}')),
        (called('{"a": 1}'), called('{"a": true}')),
        (called('{"a": 1}'), called('{"a": "1"}')),
        (called("{}"), said(content="")),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "ann"}),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
         {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:y"}}]}),
    ],
)  # fmt: skip
def test_different_messages_stay_different(one, other) -> None:
    assert digest(one) != digest(other)


def test_a_tool_result_is_tied_to_its_call_by_position_so_renamed_ids_do_not_matter() -> None:
    first = {"role": "tool", "tool_call_id": "a2", "content": "x"}
    renamed = {"role": "tool", "tool_call_id": "b2", "content": "x"}
    assert digest(first, ["a1", "a2"]) == digest(renamed, ["b1", "b2"])
    assert digest(first, ["a1", "a2"]) != digest(first, ["a2", "a1"])


def test_reasoning_is_found_wherever_it_stands() -> None:
    assert reasoning_style(said(content="hi")) == ""
    assert reasoning_style(said(content="hi", reasoning_content="so")) == "field"
    assert reasoning_style(said(content="<think>so</think>hi")) == "inline"


def test_odd_shapes_do_not_raise() -> None:
    for message in ({}, {"role": None}, said(content=3), said(tool_calls="x"), said(tool_calls=[None, {}])):
        digest(message)
        call_ids(message)


@given(
    st.dictionaries(
        st.text(max_size=4),
        st.recursive(st.one_of(st.text(), st.integers(), st.booleans(), st.none()), lambda v: st.lists(v, max_size=3)),
        max_size=5,
    )
)
def test_any_json_arguments_survive_re_serialising(arguments) -> None:
    keys = list(arguments)
    spelled = json.dumps({k: arguments[k] for k in reversed(keys)}, ensure_ascii=False, indent=3)
    assert digest(called(json.dumps(arguments))) == digest(called(spelled))


@pytest.mark.parametrize("given_out", [said(content="hi", reasoning="so"), called('{"a": 1}', content=None)])
@pytest.mark.parametrize("how", [{}, {"exclude_none": True}, {"exclude_unset": True}, {"exclude": {"reasoning"}}])
def test_an_echo_by_the_openai_sdk_is_recognised(given_out, how) -> None:
    assert digest(ChatCompletionMessage.model_validate(given_out).model_dump(**how)) == digest(given_out)
