"""What a message says, whichever SDK wrote it down: the form in which an echo is recognised.

An agent sends back the assistant messages it was given, but as its SDK re-serialises them. Two messages are the same
when they agree in what is left after dropping what SDKs change: how content is cut into parts, null or missing or empty
content, white space around an answer, reasoning (as a field or as a leading ``<think>`` block), key order, spacing and
escapes of tool arguments, whole floats against integers, ids of tool calls (a result is tied to its call by position),
and any field a provider added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
import xxhash

Message = Mapping[str, Any]
_THINK, _END_THINK = "<think>", "</think>"


def digest(message: Message, calls: Sequence[Any] = ()) -> bytes:
    """16 bytes that name what a message says.

    Args:
        calls: ids of the tool calls of the assistant message before it (`call_ids`), which tool results refer to.
    """
    return named(canonical(message, calls))


def named(value: Any) -> bytes:
    """16 bytes that name a JSON value, whatever the order of its keys. Not cryptographic: a session that made two of
    its own messages collide would mislead itself alone."""
    try:
        said = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers over 64 bits, lone surrogates, values that JSON does not have
        said = json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr).encode()
    return xxhash.xxh3_128_digest(said)


def call_ids(message: Message) -> list[Any]:
    """The ids of an assistant message's tool calls, in order."""
    calls = message.get("tool_calls")
    return [c.get("id") for c in calls if isinstance(c, Mapping)] if isinstance(calls, list) else []


def canonical(message: Message, calls: Sequence[Any] = ()) -> list[Any]:
    """The comparable form: ``[role, text, other parts, ...]`` as JSON values."""
    role = message.get("role")
    text, others = _content(message.get("content"))
    if role == "assistant":
        return [role, _answer(text), others, _calls(message)]
    if role == "tool":
        ref = message.get("tool_call_id")
        return [role, text, others, calls.index(ref) if ref in calls else ref]
    return [role, text, others, message.get("name")]


def reasoning_style(message: Message) -> Literal["", "field", "inline"]:
    """Where an answer carries reasoning: nowhere, in a field of its own, or inside its content."""
    if any(message.get(key) for key in ("reasoning", "reasoning_content")):
        return "field"
    return "inline" if _END_THINK in _content(message.get("content"))[0] else ""


def _content(content: Any) -> tuple[str, list[Any]]:
    """Text, and the parts that are not text (images, audio)."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list | tuple):
        return "", [content]
    text: list[str] = []
    others: list[Any] = []
    for part in content:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str) and "image_url" not in part:
            text.append(part["text"])
        elif isinstance(part, Mapping) and part.get("type") in ("thinking", "reasoning"):
            continue
        else:
            others.append(part)
    return "".join(text), others


def _answer(text: str) -> str:
    head, closed, rest = text.partition(_END_THINK)
    if closed and (head.lstrip().startswith(_THINK) or _THINK not in head):
        text = rest
    return text.strip()


def _calls(message: Message) -> list[list[Any]]:
    calls = message.get("tool_calls")
    functions = [c.get("function") or c for c in calls if isinstance(c, Mapping)] if isinstance(calls, list) else []
    if not functions and isinstance(legacy := message.get("function_call"), Mapping):
        functions = [legacy]
    return [[f.get("name"), _arguments(f.get("arguments"))] for f in functions]


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            return value.strip()
    return _whole(value) if value is not None else {}


def _whole(value: Any) -> Any:
    """Numbers as JavaScript writes them back: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {k: _whole(v) for k, v in value.items()}
    return [_whole(v) for v in value] if isinstance(value, list | tuple) else value
