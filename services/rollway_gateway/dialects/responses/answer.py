"""A chat answer as OpenAI's response object, with the fields vLLM gives it."""

from __future__ import annotations

from typing import Any

from rollway_gateway.dialects.responses.items import item_id
from rollway_gateway.dialects.responses.request import LOGPROBS, tool_choice
from rollway_gateway.dialects.sampled import Part, SampledAnswer

_TOOL_NULLS = ("allowed_callers", "async", "defer_loading", "description", "output_schema", "parameters", "strict")
_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


def response_id(sampled: SampledAnswer) -> str:
    return f"resp_{base_of(sampled)}"


def base_of(sampled: SampledAnswer) -> str:
    """What names the turn in the ids made here."""
    return sampled.id.removeprefix("chatcmpl-")


def finished(sampled: SampledAnswer, body: dict[str, Any]) -> dict[str, Any]:
    """The final response object."""
    cut = sampled.finish == "length"
    out = response(sampled, body, "incomplete" if cut else "completed")
    out["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    out["output"] = [item(part, sampled, body) for part in sampled.parts]
    out["usage"] = usage(sampled.usage)
    return out


def response(sampled: SampledAnswer, body: dict[str, Any], status: str) -> dict[str, Any]:
    """A response object without output."""

    def asked(name: str, default: Any = None) -> Any:
        value = body.get(name)
        return default if value is None else value

    shows = LOGPROBS in asked("include", ())
    return {
        "id": response_id(sampled), "created_at": sampled.created, "incomplete_details": None,
        "instructions": asked("instructions"), "metadata": asked("metadata"), "model": sampled.model,
        "object": "response", "output": [], "parallel_tool_calls": asked("parallel_tool_calls", True),
        "temperature": asked("temperature", 1.0), "tool_choice": tool_choice(body),
        "tools": [dict.fromkeys(_TOOL_NULLS) | tool for tool in asked("tools", ())], "top_p": asked("top_p", 1.0),
        "background": False, "max_output_tokens": asked("max_output_tokens"),
        "max_tool_calls": asked("max_tool_calls"), "previous_response_id": asked("previous_response_id"),
        "prompt": None, "reasoning": asked("reasoning"), "service_tier": asked("service_tier", "auto"),
        "status": status, "text": asked("text"), "top_logprobs": asked("top_logprobs", 0) if shows else None,
        "truncation": "disabled", "usage": None, "user": asked("user"),
        "presence_penalty": asked("presence_penalty", 0.0), "frequency_penalty": asked("frequency_penalty", 0.0),
        "kv_transfer_params": None, "ec_transfer_params": None, "input_messages": None, "output_messages": None,
    }  # fmt: skip


def item(part: Part, sampled: SampledAnswer, body: dict[str, Any]) -> dict[str, Any]:
    """A finished output item."""
    name = name_of(part, sampled)
    if part.kind == "call":
        return call_item(part, sampled, "completed")
    if part.kind == "reasoning":
        return {
            "id": name, "summary": [], "type": "reasoning", "content": [content(part, sampled, body)],
            "encrypted_content": None, "status": None,
        }  # fmt: skip
    return {
        "id": name, "content": [content(part, sampled, body)], "role": "assistant", "status": "completed",
        "type": "message", "phase": None,
    }  # fmt: skip


def name_of(part: Part, sampled: SampledAnswer) -> str:
    return item_id(_PREFIXES[part.kind], base_of(sampled), part.index)


def call_item(part: Part, sampled: SampledAnswer, status: str) -> dict[str, Any]:
    return {
        "arguments": part.text, "call_id": part.call_id, "name": part.name, "type": "function_call",
        "id": name_of(part, sampled), "async": None, "caller": None, "namespace": None, "status": status,
    }  # fmt: skip


def content(part: Part, sampled: SampledAnswer, body: dict[str, Any]) -> dict[str, Any]:
    """The one content part of a text or reasoning item."""
    if part.kind == "reasoning":
        return {"text": part.text, "type": "reasoning_text"}
    shows = LOGPROBS in (body.get("include") or ())
    first = next(p for p in sampled.parts if p.kind == "text") is part
    logprobs = [_logprob(entry) for entry in sampled.logprobs or ()] if first else []
    return {"annotations": [], "text": part.text, "type": "output_text", "logprobs": logprobs if shows else None}


def _logprob(entry: dict[str, Any]) -> dict[str, Any]:
    fields = ("token", "bytes", "logprob")
    top = [{name: t[name] for name in fields} for t in entry.get("top_logprobs") or ()]
    return {name: entry[name] for name in fields} | {"top_logprobs": top}


def usage(counted: dict[str, Any] | None) -> dict[str, Any] | None:
    if counted is None:
        return None
    asked, made = counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0
    cached = (counted.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (counted.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": cached, "cache_write_tokens": 0, "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": made,
        "output_tokens_details": {
            "reasoning_tokens": reasoning, "tool_output_tokens": 0, "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": asked + made,
    }  # fmt: skip
