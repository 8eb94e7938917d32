"""Anthropic's messages as chat messages."""

from __future__ import annotations

import json
from typing import Any

from rollway_gateway.dialects.fields import an_object, check_known, check_only, get, need, refused
from rollway_gateway.dialects.tool_result import image_part, result_messages, said

INVALID_JSON = "INVALID_JSON"
"""The one key of a tool input that stands for arguments that are no JSON object."""
BILLING_HEADER = "x-anthropic-billing-header"
"""Opens a system block that some clients send with a hash per request; vLLM drops it, as it would defeat the cache."""

_KNOWN = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
_ALLOWED = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}


def system_text(system: Any, where: str) -> str | None:
    """The text of a system prompt, a string or text blocks; None where it says nothing."""
    texts = [system] if isinstance(system, str) else [b["text"] for b in _blocks(system, where, ("text",))]
    return "".join(t for t in texts if not t.startswith(BILLING_HEADER)) or None


def chat_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Raises:
    AgentError: 400, naming the message and block that cannot be said in chat."""
    out: list[dict[str, Any]] = []
    for position, entry in enumerate(messages):
        where = f"messages[{position}]"
        message = an_object(entry, where)
        check_known(message, ("role", "content"), where)
        role = need(message, "role", str, where)
        if role not in _ALLOWED:
            raise refused(f"{where}.role must be one of {', '.join(_ALLOWED)}, got {role!r}", f"{where}.role")
        content = message.get("content")
        if role == "system":
            if (text := system_text(content, f"{where}.content")) is not None:
                out.append({"role": "system", "content": text})
        elif isinstance(content, str):
            out.append({"role": role, "content": content})
        else:
            blocks = _blocks(content, f"{where}.content", _ALLOWED[role])
            out += _assistant(blocks) if role == "assistant" else _user(blocks, f"{where}.content")
    return out


def _blocks(content: Any, where: str, allowed: tuple[str, ...]) -> list[dict[str, Any]]:
    """The checked blocks of a content list; a string is one text."""
    if not isinstance(content, list):
        raise refused(f"{where} must be a string or a list of blocks", where)
    out = []
    for position, entry in enumerate(content):
        place = f"{where}[{position}]"
        block = an_object(entry, place)
        kind = need(block, "type", str, place)
        if kind not in allowed:
            raise refused(
                f"{place}: a block of type {kind!r} is not supported here, only {', '.join(allowed)}", f"{place}.type"
            )
        check_known(block, _KNOWN[kind], place)
        if kind == "text":
            check_only(block, {"citations": ([],)}, place)
            need(block, "text", str, place)
        elif kind == "thinking":
            need(block, "thinking", str, place)
        elif kind == "tool_use":
            check_only(block, {"caller": ({"type": "direct"},)}, place)
            need(block, "id", str, place)
            need(block, "name", str, place)
            need(block, "input", dict, place)
        elif kind == "tool_result":
            need(block, "tool_use_id", str, place)
            get(block, "is_error", bool, place)
        out.append(block)
    return out


def _assistant(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": b["text"]} for b in blocks if b["type"] == "text" and b["text"]]
    reasoning = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
    calls = [_tool_call(b) for b in blocks if b["type"] == "tool_use"]
    out: dict[str, Any] = {"role": "assistant"}
    if parts or not calls:
        out["content"] = said(parts) if parts else ""
    if reasoning:
        out["reasoning"] = reasoning
    if calls:
        out["tool_calls"] = calls
    return [out]


def _tool_call(block: dict[str, Any]) -> dict[str, Any]:
    given = block["input"]
    raw = given.get(INVALID_JSON) if len(given) == 1 else None
    arguments = raw if isinstance(raw, str) else json.dumps(given)
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _user(blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Tool results first, then what else is said; a message that says nothing is left out, as vLLM leaves it."""
    out: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for position, block in enumerate(blocks):
        place = f"{where}[{position}]"
        if block["type"] == "tool_result":
            out += _tool_result(block, place)
        elif block["type"] == "image":
            parts.append(_image(block, place))
        elif block["text"]:
            parts.append({"type": "text", "text": block["text"]})
    if parts:
        out.append({"role": "user", "content": said(parts)})
    return out


def _tool_result(block: dict[str, Any], where: str) -> list[dict[str, Any]]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return result_messages(block["tool_use_id"], [content or ""])
    inner = _blocks(content, f"{where}.content", ("text", "image"))
    texts = [b["text"] for b in inner if b["type"] == "text"]
    images = [_image(b, f"{where}.content[{i}]") for i, b in enumerate(inner) if b["type"] == "image"]
    return result_messages(block["tool_use_id"], texts, images)


def _image(block: dict[str, Any], where: str) -> dict[str, Any]:
    source = need(block, "source", dict, where)
    place = f"{where}.source"
    match source.get("type"):
        case "url":
            check_known(source, ("type", "url"), place)
            return image_part(need(source, "url", str, place))
        case "base64":
            check_known(source, ("type", "media_type", "data"), place)
            return image_part(
                f"data:{need(source, 'media_type', str, place)};base64,{need(source, 'data', str, place)}"
            )
        case other:
            raise refused(f"{place}: an image of type {other!r} is not supported, only base64 and url", f"{place}.type")
