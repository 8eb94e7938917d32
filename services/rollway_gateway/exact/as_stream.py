"""A whole chat answer told as a stream of few chunks, for calls that only the engine can read, and only as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson


def as_stream(answer: Mapping[str, Any], *, running: bool) -> list[bytes]:
    """Events: each choice's opening, then all it says in one, then usage and the end.

    Args:
        running: usage is asked for on every chunk.
    """
    return [b"data: " + orjson.dumps(c) for c in _chunks(answer, running=running)] + [b"data: [DONE]"]


def _chunks(answer: Mapping[str, Any], *, running: bool) -> Iterator[dict[str, Any]]:
    head = {name: answer[name] for name in ("id", "object", "created", "model")} | {"object": "chat.completion.chunk"}
    usage = answer["usage"]
    details = usage.get("completion_tokens_details")
    ended = {k: usage[k] for k in ("prompt_tokens", "total_tokens", "completion_tokens")}
    ended["completion_tokens_details"] = details
    begun = {**ended, "total_tokens": usage["prompt_tokens"], "completion_tokens": 0}
    begun["completion_tokens_details"] = None if details is None else {**details, "reasoning_tokens": 0}
    for choice in answer["choices"]:
        opening = {"index": choice["index"], "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        yield {
            **head, "choices": [{**opening, "finish_reason": None}], **({"usage": begun} if running else {}),
            "prompt_token_ids": answer.get("prompt_token_ids"), "prompt_text": None,
        }  # fmt: skip
    for choice in answer["choices"]:
        kept = {k: choice[k] for k in ("logprobs", "finish_reason", "stop_reason", "token_ids")}
        said = {"index": choice["index"], "delta": _delta(choice["message"]), **kept}
        yield {**head, "choices": [said], **({"usage": ended} if running else {})}
    last = {**head, "choices": [], "usage": {k: v for k, v in usage.items() if v is not None}}
    yield last | ({"system_fingerprint": answer["system_fingerprint"]} if answer.get("system_fingerprint") else {})


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    delta = {name: message[name] for name in ("content", "reasoning") if message.get(name)}
    if calls := message.get("tool_calls"):
        delta["tool_calls"] = [{**call, "index": k} for k, call in enumerate(calls)]
    return delta
