"""The ASGI seam: what a call sends as chat goes out in the dialect, however it is cut and whatever goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollway_gateway.dialects.dialect import Dialect
from rollway_gateway.dialects.messages.dialect import Messages
from rollway_gateway.dialects.responses.dialect import Responses
from rollway_gateway.dialects.sending import TranslatedSend, failure_of
from rollway_gateway.openai_errors import AgentError
from tests.gateway_dialects.chats import USAGE, chunk, events, kept, whole

MESSAGES: tuple[Dialect, dict[str, Any]] = (
    Messages(), {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]},
)  # fmt: skip
RESPONSES: tuple[Dialect, dict[str, Any]] = (Responses(), {"model": "m", "input": "hi"})
STREAM, JSON = b"text/event-stream; charset=utf-8", b"application/json"


def sent(
    spoken: tuple[Dialect, dict[str, Any]], status: int, kind: bytes, *bodies: bytes,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> tuple[int, dict[bytes, bytes], bytes]:  # fmt: skip
    """(status, headers, body) that an agent gets for a chat answer sent in pieces; the ASGI order is checked."""
    out: list[Any] = []

    async def send(message: Any) -> None:
        out.append(message)

    async def call() -> None:
        dialect, body = spoken
        translated = TranslatedSend(dialect, dialect.open(body, kept()), send, "req_1")
        head = [(b"content-type", kind), *headers]
        await translated({"type": "http.response.start", "status": status, "headers": head})
        for position, piece in enumerate(bodies):
            more = position < len(bodies) - 1
            await translated({"type": "http.response.body", "body": piece, "more_body": more})

    asyncio.run(call())
    assert [m["type"] for m in out] == ["http.response.start"] + ["http.response.body"] * (len(out) - 1)
    assert [m.get("more_body", False) for m in out[1:]] == [True] * (len(out) - 2) + [False]
    return out[0]["status"], dict(out[0]["headers"]), b"".join(m["body"] for m in out[1:])


def sse(*payloads: Any) -> bytes:
    return b"".join(b"data: " + (p if isinstance(p, bytes) else json.dumps(p).encode()) + b"\n\n" for p in payloads)


CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "sé"}),
    chunk({}, finish="stop"),
    chunk(usage=USAGE),
]
WHOLE_STREAM = sse(CHUNKS[0]) + b": keep-alive\n\n" + sse(*CHUNKS[1:], b"[DONE]")


@pytest.mark.parametrize("spoken", [MESSAGES, RESPONSES])
@given(cuts=st.lists(st.integers(0, len(WHOLE_STREAM)), max_size=8))
def test_a_stream_reads_the_same_wherever_it_is_cut(spoken: tuple[Dialect, dict[str, Any]], cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(WHOLE_STREAM)]
    pieces = [WHOLE_STREAM[a:b] for a, b in itertools.pairwise(ends)]
    status, headers, body = sent(spoken, 200, STREAM, *pieces)
    assert (status, headers[b"content-type"]) == (200, STREAM)
    assert headers[spoken[0].request_id_header] == b"req_1"
    assert body == sent(spoken, 200, STREAM, WHOLE_STREAM)[2]
    assert events(body)[-1]["type"] in ("message_stop", "response.completed")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"detail":"Not Found"}', '{"detail":"Not Found"}'),
        (b"Bad Gateway", "Bad Gateway"),
        (b"", "status 502"),
        (b'{"error":"no"}', '{"error":"no"}'),
        (b'{"error":{"message":"no"}}', "no"),
    ],
)
def test_a_failure_of_any_shape_keeps_its_words(body: bytes, message: str) -> None:
    failure = failure_of(body, 502)
    assert (failure.status, failure.message, failure.kind) == (502, message, None)


def test_a_chat_error_becomes_the_providers() -> None:
    error = AgentError(503, "fenced", retry_after_s=2)
    status, headers, body = sent(MESSAGES, 503, JSON, error.body(), headers=((b"retry-after", b"2"),))
    assert (status, headers[b"retry-after"], headers[b"content-type"]) == (529, b"2", JSON)
    assert int(headers[b"content-length"]) == len(body)
    assert json.loads(body) == {"type": "error", "error": {"type": "overloaded_error", "message": "fenced"}}
    status, headers, body = sent(RESPONSES, 503, JSON, error.body(), headers=((b"retry-after", b"2"),))
    assert (status, headers[b"retry-after"]) == (503, b"2")
    assert json.loads(body) == json.loads(error.body())


STATUSES = [
    (400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"),
    (405, "invalid_request_error"), (408, "timeout_error"), (410, "invalid_request_error"),
    (413, "request_too_large"), (429, "rate_limit_error"), (500, "api_error"), (502, "api_error"),
    (504, "timeout_error"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_failures_are_named_as_anthropic_names_them(status: int, kind: str) -> None:
    said = Messages().refuse(failure_of(b"x", status))
    assert (said[0], said[1]["error"]["type"]) == (status, kind)


@pytest.mark.parametrize("spoken", [MESSAGES, RESPONSES])
@pytest.mark.parametrize("answer", [b"[]", b"{}", b"not JSON", json.dumps({**whole("x"), "choices": []}).encode()])
def test_an_answer_that_cannot_be_read_is_a_failure(spoken: tuple[Dialect, dict[str, Any]], answer: bytes) -> None:
    status, _, body = sent(spoken, 200, JSON, answer)
    assert status == 502
    assert "cannot be read" in json.loads(body)["error"]["message"]


BROKEN = [
    sse({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}),
    sse(b"not JSON"),
    sse([]),
    sse(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]})),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_stream_that_breaks_ends_with_one_failure(broken: bytes) -> None:
    stream = sse(*CHUNKS[:2]) + broken + sse(*CHUNKS[1:], b"[DONE]")
    made = events(sent(MESSAGES, 200, STREAM, stream)[2])
    assert [e["type"] for e in made[-2:]] == ["content_block_delta", "error"]
    assert made[-1]["error"]["type"] == "api_error"
    made = events(sent(RESPONSES, 200, STREAM, stream)[2])
    assert [e["type"] for e in made[-2:]] == ["response.output_text.delta", "response.failed"]
