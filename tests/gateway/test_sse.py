"""Streams cut anywhere: the same events come out, whatever the pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_gateway.capture.ask import read_ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.sse import EventTooLarge, SseBlocks, data_of
from rollway_gateway.capture.stream import Fingerprint, StreamFilter

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6)

FIELDS = ["choices", "index", "delta", "token_ids", "logprobs", "content", "usage", "finish_reason", "prompt_token_ids"]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


def _stream(texts: list[str], newline: bytes, comments: bool) -> bytes:
    out = b""
    for i, text in enumerate(texts):
        chunk: dict[str, Any] = {
            "id": "x", "choices": [
                {"index": 0, "delta": {"content": text}, "logprobs": {"content": [{"token": text, "logprob": -0.5}]},
                 "finish_reason": None, "token_ids": [i]},
            ],
        }  # fmt: skip
        out += b": keep-alive" + newline * 2 if comments else b""
        out += b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + newline * 2
    return out + b"data: [DONE]" + newline * 2


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


@given(TEXTS, st.lists(st.integers(0, 1 << 20), max_size=40), st.booleans(), st.sampled_from([b"\n", b"\r\n"]))
def test_any_cut_gives_the_same_events(texts: list[str], cuts: list[int], comments: bool, newline: bytes) -> None:
    data = _stream(texts, newline, comments)
    blocks = SseBlocks()
    cut = [b for piece in _pieces(data, cuts) for b in blocks.feed(piece)]
    assert cut == SseBlocks().feed(data)
    assert blocks.close() == b""
    found = [data_of(b) for b in cut]
    assert [json.loads(d)["choices"][0]["delta"]["content"] for d in found if d and d != b"[DONE]"] == texts
    assert found.count(None) == (len(texts) if comments else 0)


@given(TEXTS, st.lists(st.integers(0, 1 << 20), max_size=40), st.booleans())
def test_what_the_agent_sees_and_what_is_kept_do_not_depend_on_the_cuts(
    texts: list[str], cuts: list[int], comments: bool
) -> None:
    data = _stream(texts, b"\n", comments)
    ask = read_ask("chat", b'{"messages": [], "stream": true}', {})
    evidence, blocks = Evidence(1), SseBlocks()
    events = StreamFilter(ask, evidence, Fingerprint())
    shown = b"".join(events.block(b) for piece in _pieces(data, cuts) for b in blocks.feed(piece))
    assert events.done
    seen = [json.loads(b[6:]) for b in shown.split(b"\n\n") if b.startswith(b"data: {")]
    assert [e["choices"][0]["delta"]["content"] for e in seen] == texts
    assert all(e["choices"][0]["token_ids"] is None and e["choices"][0]["logprobs"] is None for e in seen)
    assert shown.count(b": keep-alive\n\n") == (len(texts) if comments else 0)
    assert evidence.captured_tokens == len(texts)


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data: x\ndata: y", b"x\ny"),
        (b"event: e\r\ndata: x", b"x"),
        (b": comment", None),
        (b"retry: 10", None),
        (b"data: ", b""),
    ],
)
def test_data_of_a_block(block: bytes, data: bytes | None) -> None:
    assert data_of(block) == data


def test_an_event_without_an_end_is_refused() -> None:
    blocks = SseBlocks(limit=10)
    with pytest.raises(EventTooLarge):
        blocks.feed(b"data: 0123456789")


@given(st.binary(max_size=60))
def test_no_bytes_break_the_filter(junk: bytes) -> None:
    """Whatever an engine sends, the agent gets it, and what cannot be read makes the call incomplete."""
    ask = read_ask("chat", b'{"messages": [], "stream": true}', {})
    evidence = Evidence(1)
    events = StreamFilter(ask, evidence, Fingerprint())
    for block in SseBlocks().feed(b"data: " + junk.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n"):
        shown = events.block(block)
        assert shown.endswith(b"\n\n") or not shown


@given(ANY_JSON)
def test_no_json_breaks_the_filter(value: Any) -> None:
    for kind in ("chat", "text"):
        ask = read_ask(kind, b'{"messages": [], "prompt": "x", "stream": true}', {})  # type: ignore[arg-type]
        events = StreamFilter(ask, Evidence(1), Fingerprint())
        events.block(b"data: " + json.dumps(value).encode())
        events.block(b"data: [DONE]")
        assert events.done
