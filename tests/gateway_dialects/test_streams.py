"""However a chat answer is cut into chunks, its events build what the whole answer gives, in lawful order."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollway_gateway.dialects.dialect import Encoder, Failure
from rollway_gateway.dialects.messages.dialect import Messages
from rollway_gateway.dialects.responses.dialect import Responses
from rollway_gateway.dialects.sampled import UnreadableChunk
from tests.gateway_dialects.chats import USAGE, call, chunk, events, kept, whole

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=6)), max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["add", "sub", "Größe"]), ARGUMENTS), max_size=3)
REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Pieces of a text, some of them empty."""
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@st.composite
def answers(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole chat answer, and chunks that say the same; log-probs come one per non-empty text piece."""
    reasoning, text, made = draw(TEXT), draw(TEXT), draw(CALLS)
    calls = [call(n, name, json.dumps(arguments)) for n, (name, arguments) in enumerate(made)]
    finish = draw(st.sampled_from(["tool_calls", "stop", "length"] if calls else ["stop", "length"]))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in cut(draw, reasoning)]
    pieces = cut(draw, text)
    deltas += [{"content": piece} for piece in pieces]
    for n, made_call in enumerate(calls):
        first, *rest = cut(draw, made_call["function"]["arguments"])
        head = {**made_call, "index": n, "function": {"name": made_call["function"]["name"], "arguments": first}}
        deltas.append({"tool_calls": [head]})
        deltas += [{"tool_calls": [{"index": n, "function": {"arguments": piece}}]} for piece in rest]
    entries = [
        {"token": p, "bytes": list(p.encode()), "logprob": -0.5, "top_logprobs": []} for p in pieces if p
    ]  # fmt: skip
    rest_of = iter(entries)
    chunks = [chunk(d, logprobs=[next(rest_of)] if d.get("content") else None) for d in merged(draw, deltas)]
    return (
        whole(text or None, reasoning=reasoning or None, calls=calls, finish=finish, logprobs=entries or None),
        [*chunks, chunk({}, finish=finish), chunk(usage=USAGE)],
    )


def merged(draw: st.DrawFn, deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some neighbours in one chunk, as a parser that is given several tokens at once makes them."""
    out: list[dict[str, Any]] = []
    for delta in deltas:
        before = out[-1] if out else {}
        ordered = "tool_calls" in delta or ("content" in delta and "content" not in before)
        if out and ordered and "role" not in before and draw(st.integers(0, 4)) == 0:
            calls = [*before.get("tool_calls", []), *delta.get("tool_calls", [])]
            if not ("tool_calls" in before and "content" in delta):
                out[-1] = {**before, **delta} | ({"tool_calls": calls} if calls else {})
                continue
        out.append(delta)
    return out


def sent_by(encoder: Encoder, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sent = b"".join(encoder.feed(c) for c in chunks) + encoder.end()
    assert encoder.end() == b""
    return events(sent)


def parsed(arguments: str) -> Any:
    """As a client reads a tool's input; the text itself where a model wrote no JSON."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {"INVALID_JSON": arguments}


def build_message(sent: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that Anthropic's events describe; one block is open at a time."""
    assert [e["type"] for e in (sent[0], *sent[-2:])] == ["message_start", "message_delta", "message_stop"]
    made = dict(sent[0]["message"])
    texts: list[str] = []
    open_: dict[str, Any] | None = None
    for event in sent[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_ is None
                assert event["index"] == len(made["content"])
                open_ = dict(event["content_block"])
                texts = []
            case "content_block_delta":
                assert open_ is not None
                delta = event["delta"]
                kind = delta.pop("type")
                ((_, value),) = delta.items()
                assert kind.split("_")[0] in ({"tool_use": ("input",)}.get(open_["type"], (open_["type"], "signature")))
                if kind == "signature_delta":
                    open_["signature"] = value
                else:
                    assert value
                    texts.append(value)
            case "content_block_stop":
                assert open_ is not None
                text = "".join(texts)
                key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[open_["type"]]
                open_[key] = parsed(text) if key == "input" else text
                made["content"].append(open_)
                open_ = None
    assert open_ is None
    made |= sent[-2]["delta"] | {"usage": sent[-2]["usage"]}
    return {k: v for k, v in made.items() if v is not None}


@given(answers())
def test_messages(answer: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    exchange = Messages().open(REQUEST, kept())
    assert build_message(sent_by(exchange.stream(), answer[1])) == exchange.answer(answer[0])


def check_response(sent: list[dict[str, Any]]) -> dict[str, Any]:
    """The final response, after a check that every item grew by events to what it is there."""
    assert [e["sequence_number"] for e in sent] == list(range(len(sent)))
    assert [e["type"] for e in sent[:2]] == ["response.created", "response.in_progress"]
    final: dict[str, Any] = sent[-1]["response"]
    assert sent[0]["response"] == sent[1]["response"] == {
        **final, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None,
    }  # fmt: skip
    at = 2
    for index, item in enumerate(final["output"]):
        end = next(i for i in range(at, len(sent)) if sent[i]["type"] == "response.output_item.done")
        mine = sent[at : end + 1]
        at = end + 1
        assert all(e["output_index"] == index for e in mine)
        assert mine[0]["item"]["id"] == item["id"] == mine[-1]["item"]["id"]
        assert {e["item_id"] for e in mine if "item_id" in e} <= {item["id"]}
        deltas = "".join(e["delta"] for e in mine if e["type"].endswith(".delta"))
        whole_text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas == whole_text
        done = next(e for e in mine if e["type"].endswith(("text.done", "arguments.done")))
        assert whole_text == (done["arguments"] if item["type"] == "function_call" else done["text"])
        assert mine[-1]["item"] == item
    assert at == len(sent) - 1
    return final


@given(answers(), st.booleans())
def test_responses(answer: tuple[dict[str, Any], list[dict[str, Any]]], shows_logprobs: bool) -> None:
    body = {"input": "hi"} | ({"include": ["message.output_text.logprobs"]} if shows_logprobs else {})
    exchange = Responses().open(body, kept())
    sent = sent_by(exchange.stream(), answer[1])
    assert check_response(sent) == exchange.answer(answer[0])
    deltas = [entry for e in sent if e["type"] == "response.output_text.delta" for entry in e["logprobs"]]
    made = (answer[0]["choices"][0]["logprobs"] or {"content": []})["content"]
    assert [d["token"] for d in deltas] == [e["token"] for e in made]


@pytest.mark.parametrize(
    "encoder", [Messages().open(REQUEST, kept()).stream(), Responses().open({"input": "hi"}, kept()).stream()]
)
def test_text_beside_an_open_tool_call_waits_until_the_call_is_over(encoder: Encoder) -> None:
    """Its arguments may still grow, and only one block can be open."""
    parts = [
        {"tool_calls": [{**call(0, arguments='{"a"'), "index": 0}]},
        {"content": "\n"},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{**call(1), "index": 1}]},
        {"content": "bye"},
    ]
    sent = sent_by(encoder, [*map(chunk, parts), chunk({}, finish="tool_calls", usage=USAGE)])
    if sent[0]["type"] == "message_start":
        content = build_message(sent)["content"]
        assert [b.get("input", b.get("text")) for b in content] == [{"a": 1}, "\n", {"a": 1}, "bye"]
    else:
        output = check_response(sent)["output"]
        assert [i.get("arguments") or i["content"][0]["text"] for i in output] == ['{"a": 1}', "\n", '{"a": 1}', "bye"]


def test_a_tool_call_that_goes_on_after_another_is_not_readable() -> None:
    encoder = Messages().open(REQUEST, kept()).stream()
    for n in (0, 1):
        encoder.feed(chunk({"tool_calls": [{**call(n), "index": n}]}))
    with pytest.raises(UnreadableChunk):
        encoder.feed(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "!"}}]}))


def test_text_arrives_as_it_is_sampled() -> None:
    """Each chunk gives its event at once, arguments included."""
    for exchange in (Messages().open(REQUEST, kept()), Responses().open({"input": "hi"}, kept())):
        encoder = exchange.stream()
        for delta in ({"reasoning": "r"}, {"content": "t"}, {"tool_calls": [{**call(0, arguments="{"), "index": 0}]}):
            (value,) = (v for v in delta.values())
            expected = "{" if isinstance(value, list) else value
            given_out = events(encoder.feed(chunk(delta)))[-1]
            delta_sent = given_out["delta"]
            assert expected in (delta_sent if isinstance(delta_sent, str) else list(delta_sent.values()))


def test_other_choices_are_not_shown() -> None:
    """A session may sample several answers per call; the dialects show one."""
    encoder = Responses().open({"input": "hi"}, kept()).stream()
    sent = sent_by(encoder, [chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({}, finish="stop")])
    assert check_response(sent)["output"][0]["content"][0]["text"] == "a"


FAILURE = Failure(503, "worker lost")


def test_a_failure_ends_a_stream_of_messages() -> None:
    encoder = Messages().open(REQUEST, kept()).stream()
    encoder.feed(chunk({"content": "a"}))
    (last,) = events(encoder.fail(FAILURE))
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "worker lost"}}
    assert encoder.end() == encoder.feed(chunk({"content": "a"})) == encoder.fail(FAILURE) == b""
    assert events(encoder.keep_alive()) == [{"type": "ping"}]


@pytest.mark.parametrize("begun", [False, True])
def test_a_failure_ends_a_stream_of_responses(begun: bool) -> None:
    encoder = Responses().open({"input": "hi"}, kept()).stream()
    sent = encoder.feed(chunk({"content": "a"})) if begun else b""
    sent += encoder.fail(FAILURE)
    last = events(sent)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "worker lost"}
    assert [e["sequence_number"] for e in events(sent)] == list(range(len(events(sent))))
    assert encoder.end() == encoder.feed(chunk({"content": "a"})) == encoder.fail(FAILURE) == b""
    assert events(encoder.keep_alive()) == []
