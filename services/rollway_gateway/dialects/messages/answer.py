"""A chat answer as Anthropic's message."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rollway_gateway.dialects.messages.content import INVALID_JSON
from rollway_gateway.dialects.sampled import Part, SampledAnswer

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def message(sampled: SampledAnswer, stop_sequences: list[str]) -> dict[str, Any]:
    """The message object, without the fields that are null, as vLLM writes it."""
    reason, sequence = stop_of(sampled, stop_sequences)
    content = [block(part, sampled.id) for part in sampled.parts]
    out = {
        "id": sampled.id, "type": "message", "role": "assistant", "content": content or [{"type": "text", "text": ""}],
        "model": sampled.model, "stop_reason": reason, "stop_sequence": sequence, "usage": usage(sampled.usage),
    }  # fmt: skip
    return {name: value for name, value in out.items() if value is not None}


def block(part: Part, answer_id: str) -> dict[str, Any]:
    """A finished content block."""
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": signature(part, answer_id)}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": _input(part.text)}


def signature(part: Part, answer_id: str) -> str:
    """A name for the block: clients want one and pass it back."""
    return hashlib.blake2b(f"{answer_id}/{part.index}".encode(), digest_size=16).hexdigest()


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def stop_of(sampled: SampledAnswer, stop_sequences: list[str]) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence)."""
    if sampled.finish == "stop" and sampled.calls:
        return "tool_use", None  # a forced tool: the engine says "stop"
    if sampled.finish == "stop" and sampled.stop is not None and sampled.stop in stop_sequences:
        return "stop_sequence", sampled.stop
    return _STOPS.get(sampled.finish or "stop", "end_turn"), None


def usage(counted: dict[str, Any] | None) -> dict[str, int]:
    """Input without what came from the cache, which Anthropic counts beside it; zeros where nothing is counted yet."""
    if counted is None:
        return {"input_tokens": 0, "output_tokens": 0}
    asked, made = counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0
    cached = (counted.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None:
        return {"input_tokens": asked, "output_tokens": made}
    return {"input_tokens": asked - cached, "output_tokens": made, "cache_read_input_tokens": cached}
