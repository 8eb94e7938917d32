"""An agent's request: what goes to the engine, and what of the answer is the agent's to see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollway_gateway.capture.ask import Kind, read_ask
from rollway_gateway.openai_errors import AgentError

CHAT = {"model": "m", "messages": []}
INJECTED = {"logprobs": True, "return_token_ids": True}


def _sent(kind: Kind, body: dict[str, Any], overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    return read_ask(kind, json.dumps(body).encode(), overrides or {}).body


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, INJECTED),
        ({"logprobs": False}, INJECTED),
        ({"logprobs": True, "top_logprobs": 5}, {**INJECTED, "top_logprobs": 5}),
        ({"logprobs": True, "top_logprobs": None}, {**INJECTED, "top_logprobs": 0}),
        ({"top_logprobs": 2}, {"top_logprobs": 2}),
        ({"include_reasoning": False}, {**INJECTED, "include_reasoning": True}),
        (
            {"stream": True},
            {**INJECTED, "stream": True,
             "stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        ),
        (
            {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            {**INJECTED, "stream": True,
             "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        ({"stream_options": {}}, {**INJECTED, "stream_options": {}}),
    ],
)  # fmt: skip
def test_chat_requests_get_what_capture_needs(asked: dict[str, Any], sent: dict[str, Any]) -> None:
    assert _sent("chat", {**CHAT, **asked}) == {**CHAT, **sent}


@pytest.mark.parametrize(
    ("asked", "sent", "echoed", "captured"),
    [
        ({"prompt": "p"}, {"logprobs": 0, "return_token_ids": True}, (), True),
        ({"prompt": "p", "logprobs": 3}, {"return_token_ids": True}, (), True),
        ({"prompt": "p", "echo": True}, {"logprobs": 0, "return_token_ids": True}, ("p",), True),
        ({"prompt": ["p", "q"], "echo": True}, {"logprobs": 0, "return_token_ids": True}, ("p", "q"), True),
        ({"prompt": [1, 2], "echo": True}, {}, (), False),
        ({"prompt": [1], "echo": True, "return_token_ids": True}, {"logprobs": 0}, (), True),
    ],
)
def test_text_requests_get_what_capture_needs(
    asked: dict[str, Any], sent: dict[str, Any], echoed: tuple[str, ...], captured: bool
) -> None:
    ask = read_ask("text", json.dumps(asked).encode(), {})
    assert (ask.body, ask.echoed, ask.captured) == ({**asked, **sent}, echoed, captured)


@pytest.mark.parametrize(
    ("asked", "overrides", "sent"),
    [
        ({"temperature": 0.1}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0, "top_p": 0.9}),
        ({"max_completion_tokens": 9}, {"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 9}, {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
        ({"max_tokens": 9}, {}, {"max_tokens": 9}),
        ({}, {"logprobs": False, "return_token_ids": False}, {}),
        ({"n": 1}, {"n": 4}, {"n": 4}),
        ({"top_k": 3}, {"top_p": 0.9, "extra_body": {"top_k": 5, "top_p": 0.1}}, {"top_p": 0.9, "top_k": 5}),
    ],
)
def test_session_parameters_override_the_agents(
    asked: dict[str, Any], overrides: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert _sent("chat", {**CHAT, **asked}, overrides) == {**CHAT, **sent, **INJECTED}


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{", "body"),
        (b"[1]", "body"),
        (b'"x"', "body"),
        (b"\xff", "body"),
        (b"", "body"),
        (b'{"stream": "yes"}', "stream"),
        (b'{"n": true}', "n"),
        (b'{"n": "2"}', "n"),
        (b'{"model": 1}', "model"),
        (b'{"stream": true, "stream_options": []}', "stream_options"),
        (b'{"include_reasoning": 0}', "include_reasoning"),
    ],
)
def test_requests_that_cannot_be_understood_are_refused(raw: bytes, param: str) -> None:
    with pytest.raises(AgentError) as refused:
        read_ask("chat", raw, {})
    assert (refused.value.status, refused.value.param) == (400, param)
    assert json.loads(refused.value.body())["error"].keys() == {"message", "type", "param", "code"}
