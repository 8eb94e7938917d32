"""What is read without parsing is what parsing reads, and what is shown is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_gateway.capture import stream
from rollway_gateway.capture.answer import strip_answer, take_answer
from rollway_gateway.capture.ask import Ask, Kind, read_ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.logprobs import cut_logprobs
from rollway_gateway.capture.stream import Fingerprint, StreamFilter
from rollway_gateway.capture.usual_event import UsualEvent

RECORDED = Path(__file__).with_name("recorded")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"', "\\", '","logprobs":{"content":[{"token":', ']},"finish_reason":', "\n", "👍", ',"logprob":1,"bytes":']
)
VALUES = st.floats(-50, 0, allow_nan=False) | st.sampled_from([0, -0.0, -1e-20, -9999.0])
TOKENS = st.tuples(st.integers(0, 151_000), TEXTS, VALUES)


def asked(kind: Kind, **body: Any) -> Ask:
    said = {"messages": [{"role": "user", "content": "x"}]} if kind == "chat" else {"prompt": "x"}
    return read_ask(kind, orjson.dumps({"model": "m", **said, **body}), {})


def entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}


def captured(evidence: Evidence) -> list[tuple[list[int], bytes, str | None, str | None]]:
    """The log-probs as bytes, so that they are compared to the last bit."""
    return [
        (c.ids.tolist(), c.logprobs.tobytes(), c.finish_reason, evidence.flaw(i)) for i, c in evidence.choices.items()
    ]


# -- events


def event(kind: str, text: str, token: tuple[int, str, float], **more: Any) -> dict[str, Any]:
    choice = {
        "index": 0, "delta": {kind: text}, "logprobs": {"content": [entry(token[1], token[2])]},
        "finish_reason": None, "token_ids": [token[0]], **more,
    }  # fmt: skip
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


UNUSUAL: list[dict[str, Any]] = [
    {"finish_reason": "stop"}, {"delta": {}}, {"index": 1}, {"token_ids": [1, 2]}, {"token_ids": None},
    {"token_ids": [-1]}, {"token_ids": [2**40]}, {"logprobs": None}, {"delta": {"content": ""}}, {"extra": 1},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}}, {"delta": {"content": None}},
    {"logprobs": {"content": [entry("a", -1.0) | {"top_logprobs": [entry("b", -2.0)]}]}},
    {"logprobs": {"content": [entry("a", -1.0), entry("b", -2.0)]}},
]  # fmt: skip
EVENTS = st.builds(event, st.sampled_from(["content", "reasoning"]), TEXTS, TOKENS) | st.builds(
    lambda more, token: event("content", "x", token, **more), st.sampled_from(UNUSUAL), TOKENS
)


def streamed(blocks: list[bytes], *, parses: bool, **body: Any) -> tuple[bytes, Any]:
    ask, evidence = asked("chat", stream=True, **body), Evidence(1)
    events = StreamFilter(ask, evidence, Fingerprint())
    if parses:
        events._usual = None
    shown = events.blocks(blocks)
    evidence.settle()
    return shown, captured(evidence)


def spelled(shown: bytes) -> list[Any]:
    """What the events say: the engine's way of writing a character is kept where an event is not parsed."""
    return [json.loads(part[6:]) for part in shown.split(b"\n\n") if part]


@given(st.lists(EVENTS, min_size=1, max_size=8), st.booleans())
def test_events_read_without_parsing_say_the_same(events: list[dict[str, Any]], escaped: bool) -> None:
    dump = (lambda e: json.dumps(e, separators=(",", ":")).encode()) if escaped else orjson.dumps
    blocks = [b"data: " + dump(e) for e in events]
    shown, found = streamed(blocks, parses=False)
    other, parsed = streamed(blocks, parses=True)
    assert (spelled(shown), found) == (spelled(other), parsed)


@pytest.mark.parametrize("body", [{"logprobs": True}, {"return_token_ids": True}, {"include_reasoning": False}])
def test_an_agent_that_asked_for_more_gets_it(body: dict[str, Any]) -> None:
    blocks = [b"data: " + orjson.dumps(event("content", "x", (k, "x", -1.0))) for k in range(4)]
    assert streamed(blocks, parses=False, **body) == streamed(blocks, parses=True, **body)


def test_usual_events_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first of a stream, which the others' heads are compared with."""
    blocks = [b"data: " + orjson.dumps(event("content", f"<{k}>é", (k, "x", -1.0))) for k in range(10)]
    parsed: list[bytes] = []

    def loads(data: bytes) -> Any:
        parsed.append(data[:6])
        return json.loads(data)

    monkeypatch.setattr(stream.orjson, "loads", loads)
    shown, found = streamed(blocks, parses=False)
    assert parsed.count(b'{"id":') == 1 and found[0][0] == list(range(10))
    assert len(spelled(shown)) == 10


@pytest.mark.parametrize(
    "spoil",
    [
        (b'"x"', b'"x\xff"'),
        (b'"x"', b'"x\x01"'),
        (b'"x"', b'"x\\q"'),
        (b"[1]", b"[01]"),
        (b"-1.5", b"-.5"),
        (b"}]}", b"}]"),
    ],
)
def test_what_is_no_json_is_not_usual(spoil: tuple[bytes, bytes]) -> None:
    usual, block = UsualEvent(), b"data: " + orjson.dumps(event("content", "x", (1, "y", -1.5)))
    usual.learn(block)
    assert usual.read(block) is not None
    spoiled = block.replace(*spoil)
    assert spoiled != block and usual.read(spoiled) is None


# -- whole answers


def chat_answer(tokens: list[tuple[int, str, float]], content: str, finish: str = "stop") -> dict[str, Any]:
    choice = {
        "index": 0, "message": {"role": "assistant", "content": content},
        "logprobs": {"content": [entry(text, value) for _, text, value in tokens]},
        "finish_reason": finish, "stop_reason": None, "token_ids": [k for k, *_ in tokens],
    }  # fmt: skip
    usage = {"prompt_tokens": 2, "total_tokens": 2 + len(tokens), "completion_tokens": len(tokens)}
    return {"id": "c", "choices": [choice], "usage": usage, "prompt_token_ids": [5, 6], "metrics": {"logprobs": 1}}


def text_answer(tokens: list[tuple[int, str, float]], content: str, finish: str = "stop") -> dict[str, Any]:
    choice = {
        "index": 0, "text": content,
        "logprobs": {
            "text_offset": [0] * len(tokens), "token_logprobs": [value for *_, value in tokens],
            "tokens": [text for _, text, _ in tokens], "top_logprobs": [{text: value} for _, text, value in tokens],
        },
        "finish_reason": finish, "token_ids": [k for k, *_ in tokens], "prompt_token_ids": [5, 6],
    }  # fmt: skip
    usage = {"prompt_tokens": 2, "total_tokens": 2 + len(tokens), "completion_tokens": len(tokens)}
    return {"id": "c", "choices": [choice], "usage": usage}


def whole(kind: Kind, raw: bytes, *, cut: bool) -> tuple[Any, Any]:
    ask, evidence = asked(kind), Evidence(1)
    found = cut_logprobs(raw) if cut else None
    body, logprobs = (raw, None) if found is None else found
    payload = orjson.loads(body)
    take_answer(payload, ask, evidence, logprobs)
    strip_answer(payload, ask)
    return payload, captured(evidence)


@given(st.sampled_from(["chat", "text"]), st.lists(TOKENS, min_size=1, max_size=8), TEXTS)
def test_log_probs_cut_out_are_those_that_parsing_finds(kind: Kind, tokens: Any, content: str) -> None:
    raw = orjson.dumps((chat_answer if kind == "chat" else text_answer)(tokens, content))
    assert cut_logprobs(raw) is not None
    assert whole(kind, raw, cut=True) == whole(kind, raw, cut=False)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda p: p.name)
def test_recorded_answers_are_read_the_same(path: Path) -> None:
    answer = orjson.loads(raw := path.read_bytes())
    if path.name.endswith(".req.json") or "choices" not in answer:
        assert cut_logprobs(raw) is None
        return
    raw = orjson.dumps(answer)  # as engines write it
    kind: Kind = "text" if "text" in answer["choices"][0] else "chat"
    assert whole(kind, raw, cut=True) == whole(kind, raw, cut=False)


@pytest.mark.parametrize("make", [chat_answer, text_answer])
def test_unusual_answers_are_parsed_as_they_are(make: Any) -> None:
    tokens = [(1, "a", -1.0), (2, "b", -2.0)]
    usual = make(tokens, "ab")
    assert cut_logprobs(orjson.dumps(usual)) is not None
    assert cut_logprobs(orjson.dumps(make(tokens, "ab", "abort"))) is None
    assert cut_logprobs(orjson.dumps({**usual, "choices": usual["choices"] * 2})) is None
    usual["choices"][0]["logprobs"] = None
    assert cut_logprobs(orjson.dumps(usual)) is None


def test_alternatives_beside_the_sampled_tokens_are_not_taken_for_them() -> None:
    answer = chat_answer([(1, "a", -1.0), (2, "b", -2.0)], "ab")
    answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [entry("c", -0.5)]
    raw = orjson.dumps(answer)
    found = cut_logprobs(raw)
    assert found is not None and found[1] == [-1.0, -2.0]
    assert whole("chat", raw, cut=True) == whole("chat", raw, cut=False)


@pytest.mark.parametrize("value", [b'"-1.0"', b"true", b"[-1.0]", b"-1.0.0", b"-01", b""])
def test_what_is_no_number_is_left_to_be_parsed(value: bytes) -> None:
    raw = orjson.dumps(chat_answer([(1, "a", -1.0), (2, "b", -2.0)], "ab"))
    spoiled = raw.replace(b'"logprob":-1.0', b'"logprob":' + value)
    assert spoiled != raw and cut_logprobs(spoiled) is None


def test_a_log_prob_that_is_null_is_missing() -> None:
    raw = orjson.dumps(chat_answer([(1, "a", -1.0), (2, "b", -2.0)], "ab")).replace(
        b'"logprob":-1.0', b'"logprob":null'
    )
    found = cut_logprobs(raw)
    assert found is not None and found[1] == [None, -2.0]
