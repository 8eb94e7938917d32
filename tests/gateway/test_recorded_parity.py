"""For every recorded vLLM answer: an agent that asks for all of it sees it unchanged, and one that asks for no capture
field sees what plain vLLM shows (spelled out here a second time, apart from the gateway's own code)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollway_gateway.capture.answer import strip_answer, take_answer
from rollway_gateway.capture.ask import Ask, Kind, read_ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.sse import SseBlocks
from rollway_gateway.capture.stream import Fingerprint, StreamFilter

FOLDER = Path(__file__).parent / "recorded"
CAPTURE = ("logprobs", "return_token_ids", "top_logprobs", "return_tokens_as_token_ids", "stream_options")


def _requests(suffix: str) -> list[str]:
    names = [p.name.removesuffix(suffix) for p in sorted(FOLDER.glob("*" + suffix)) if ".req" not in p.name]
    return [n for n in names if (FOLDER / f"{n}.req.json").exists() and _request(n)["status"] == 200]


def _request(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.req.json").read_text())
    return found


def _ask(name: str, *, plain: bool) -> Ask:
    request = _request(name)
    body = {k: v for k, v in request["body"].items() if not plain or k not in CAPTURE}
    kind: Kind = "chat" if "chat" in request["path"] else "text"
    return read_ask(kind, json.dumps(body).encode(), {})


@pytest.mark.parametrize("name", _requests(".json"))
@pytest.mark.parametrize("plain", [False, True])
def test_whole_answers(name: str, plain: bool) -> None:
    recorded = (FOLDER / f"{name}.json").read_text()
    ask, payload = _ask(name, plain=plain), json.loads(recorded)
    evidence = Evidence(ask.n)
    take_answer(payload, ask, evidence)
    strip_answer(payload, ask)
    expected = json.loads(recorded)
    if plain:
        for obj in (expected, *expected["choices"]):
            obj.update({k: None for k in ("prompt_token_ids", "token_ids", "logprobs") if k in obj})
    assert json.dumps(payload) == json.dumps(expected)
    if _request(name)["body"].get("logprobs") is not None:
        assert [evidence.flaw(i) for i in evidence.choices] == [None] * len(expected["choices"])


@pytest.mark.parametrize("name", _requests(".sse"))
@pytest.mark.parametrize("plain", [False, True])
def test_streams(name: str, plain: bool) -> None:
    recorded = (FOLDER / f"{name}.sse").read_bytes()
    ask = _ask(name, plain=plain)
    evidence, blocks = Evidence(ask.n), SseBlocks()
    events = StreamFilter(ask, evidence, Fingerprint())
    shown = b"".join(events.block(b) for b in blocks.feed(recorded))
    got = [json.loads(x[6:]) if x[6:7] == b"{" else x for x in shown.split(b"\n\n") if x]
    assert [json.dumps(e) for e in got[:-1]] == [json.dumps(e) for e in _expected(recorded, plain)]
    assert got[-1] == b"data: [DONE]"
    assert all(c.ids and len(c.ids) == len(c.logprobs) and c.finish_reason for c in evidence.choices.values())
    if b'"usage"' in recorded:
        evidence.settle()
        assert [evidence.flaw(i) for i in evidence.choices] == [None] * len(evidence.choices)


def _expected(recorded: bytes, plain: bool) -> list[dict[str, Any]]:
    """The events an agent should see of a recorded stream."""
    events = [json.loads(line[6:]) for line in recorded.splitlines() if line.startswith(b"data: {")]
    if not plain:
        return events
    usage = [e for e in events if not e["choices"]]
    out = []
    for event in events:
        if not event["choices"]:
            continue
        (choice,) = event["choices"]
        if choice.get("delta") == {} and choice["finish_reason"] is None:
            continue
        for obj in (event, choice):
            obj.update({k: None for k in ("prompt_token_ids", "token_ids", "logprobs") if k in obj})
        if usage and choice["finish_reason"] is not None:
            event["system_fingerprint"] = usage[0]["system_fingerprint"]
        out.append(event)
    return out


def test_an_engine_that_dies_in_the_stream_is_shown_as_it_is() -> None:
    recorded = (FOLDER / "f01_engine_death_stream_tail.sse").read_bytes()
    recorded = recorded[recorded.index(b"data:") :]
    ask = read_ask("chat", b'{"messages": [], "stream": true, "return_token_ids": true}', {})
    evidence = Evidence(1)
    events = StreamFilter(ask, evidence, Fingerprint())
    shown = events.blocks(SseBlocks().feed(recorded)) + events.end_with_error()
    assert shown.endswith(recorded[recorded.index(b'data: {"error"') :].rstrip() + b"\n\n")
    assert evidence.problem is not None
    assert "EngineCore encountered an issue" in evidence.problem
