"""Chat messages as vLLM hands them to a template. Source: vLLM `entrypoints/chat_utils.py` (0.28 to 0.32)."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rollway_wire.problems import BadRequest

Message = Mapping[str, Any]
_TEXT_PARTS = {"text", "input_text", "output_text", "refusal", "thinking"}


class NotText(BadRequest):
    """A message holds a part that is not text: only the engine can render it."""


def engine_messages(messages: Sequence[Message], fmt: Literal["string", "openai"]) -> list[dict[str, Any]]:
    """Messages with the fields that reach a template.

    Content is a string, parts joined by newlines, or for ``openai`` templates a list of text parts (always a string for
    tool results). Tool-call arguments are objects. Reasoning is given under both of its names.

    Raises:
        NotText: images, audio and the like.
        BadRequest: a message without a role, or tool calls whose arguments are no JSON.
    """
    return [_engine_message(m, fmt) for m in messages]


def texts(content: Any) -> list[str]:
    """The texts of a message's content: a string, a list of parts, or nothing.

    Raises:
        NotText: a part that is not text.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        raise BadRequest(f"a message's content is a string or a list of parts, got {type(content).__name__}")
    return [_part(p) for p in content]


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get(kind if kind in ("refusal", "thinking") else "text") if isinstance(part, Mapping) else None
    if (kind is None or kind in _TEXT_PARTS) and isinstance(text, str):
        return text
    raise NotText(f"a content part of type {kind!r} is not text")


def _engine_message(message: Message, fmt: Literal["string", "openai"]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRequest("a message has no role")
    parts = texts(message.get("content"))
    as_parts = fmt == "openai" and role != "tool"
    out: dict[str, Any] = {
        "role": role,
        "content": [{"type": "text", "text": t} for t in parts] if as_parts else "\n".join(parts),
    }
    if role == "assistant":
        if calls := message.get("tool_calls"):
            out["tool_calls"] = [_tool_call(c) for c in calls]
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if reasoning is not None:
            out["reasoning"] = out["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        out["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        out["name"] = message["name"]
    return out


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise BadRequest("an entry of tool_calls has no function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as e:
            raise BadRequest(f"the arguments of tool call {function.get('name')!r} are no JSON: {e}") from e
    return {**copy.copy(dict(call)), "function": {**function, "arguments": {} if arguments is None else arguments}}


def engine_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools with the fields vLLM's request model keeps, in its order; absent ones are null. None for no tools."""
    if not tools:
        return None
    out = []
    for tool in tools:
        function = tool.get("function", tool)
        kept = {k: function.get(k) for k in ("name", "description", "parameters")}
        out.append({"type": tool.get("type", "function"), "function": kept | _optional(function, "strict")})
    return out


def _optional(function: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: function[key]} if function.get(key) is not None else {}
