"""Chat answers and chunks as vLLM writes them, and events read back, for the tests of the dialects."""

from __future__ import annotations

import json
from typing import Any

from rollway_gateway.capture.sse import SseBlocks, data_of
from rollway_gateway.dialects.responses.kept import KeptResponses

ID = "chatcmpl-ac045c79ebb6496b"
USAGE = {"prompt_tokens": 37, "completion_tokens": 8, "total_tokens": 45}


def kept(limit: int = 1 << 20) -> KeptResponses:
    return KeptResponses(limit)


def call(number: int, name: str = "add", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def whole(
    content: str | None = None, *, reasoning: str | None = None, calls: list[dict[str, Any]] | None = None,
    finish: str = "stop", stop: str | int | None = None, logprobs: list[dict[str, Any]] | None = None,
    usage: dict[str, Any] | None = None, answer_id: str = ID,
) -> dict[str, Any]:  # fmt: skip
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning": reasoning}
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0, "message": message, "logprobs": {"content": logprobs} if logprobs is not None else None,
        "finish_reason": finish, "stop_reason": stop, "token_ids": None,
    }  # fmt: skip
    return {
        "id": answer_id, "object": "chat.completion", "created": 1795224427, "model": "smollm2", "choices": [choice],
        "usage": USAGE if usage is None else usage, "prompt_token_ids": None,
    }  # fmt: skip


def chunk(
    delta: dict[str, Any] | None = None, *, finish: str | None = None, stop: str | int | None = None,
    usage: dict[str, Any] | None = None, logprobs: list[dict[str, Any]] | None = None, index: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """One chunk; without ``delta`` the one that carries usage alone."""
    choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
    choice["logprobs"] = {"content": logprobs} if logprobs is not None else None
    if finish is not None:
        choice["stop_reason"] = stop
    out = {
        "id": ID, "object": "chat.completion.chunk", "created": 1795224427, "model": "smollm2",
        "choices": [choice] if delta is not None else [],
    }  # fmt: skip
    return out if usage is None else {**out, "usage": usage}


def events(sent: bytes) -> list[dict[str, Any]]:
    """The payloads of the events, each checked to be named as its type; comments are left out."""
    out = []
    blocks = SseBlocks()
    for block in blocks.feed(sent):
        data = data_of(block)
        if data is None:
            continue
        payload = json.loads(data)
        assert block.split(b"\n")[0] == b"event: " + payload["type"].encode()
        out.append(payload)
    assert blocks.close() == b""
    return out
