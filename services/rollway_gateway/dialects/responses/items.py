"""Input items of a Responses request as chat messages."""

from __future__ import annotations

from typing import Any

from rollway_gateway.dialects.fields import an_object, check_known, check_only, get, need, refused
from rollway_gateway.dialects.tool_result import image_part, result_messages, said

_ROLES = ("user", "assistant", "system", "developer")
_KNOWN = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "function_call": {"type", "call_id", "name", "arguments", "id", "status"},
    "function_call_output": {"type", "call_id", "output", "id", "status"},
    "reasoning": {"type", "id", "content", "summary", "status", "encrypted_content"},
}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Kinds of text part and the field that holds the text."""


def chat_messages(items: str | list[Any]) -> tuple[list[dict[str, Any]], bool]:
    """(messages, whether the last one is an assistant's to be continued: its item's status says it is not over).

    Raises:
        AgentError: 400, naming the item that cannot be said in chat.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}], False
    history = _History()
    unfinished = False
    for position, entry in enumerate(items):
        where = f"input[{position}]"
        item = an_object(entry, where)
        kind = get(item, "type", str, where) or "message"
        if kind not in _KNOWN:
            raise refused(
                f"{where}: an item of type {kind!r} is not supported, only {', '.join(_KNOWN)}", f"{where}.type"
            )
        check_known(item, _KNOWN[kind], where)
        history.take(kind, item, where)
        unfinished = kind in ("message", "reasoning") and item.get("status") in ("in_progress", "incomplete")
    return history.messages, unfinished and history.messages[-1]["role"] == "assistant"


class _History:
    """Messages under construction; the last assistant message may still take items of its turn."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: str | None = None
        """Of the last assistant message: the part of its items' ids that they share."""

    def take(self, kind: str, item: dict[str, Any], where: str) -> None:
        match kind:
            case "message":
                self._message(item, where)
            case "function_call":
                self._call(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case _:
                self._output(item, where)

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = need(item, "role", str, where)
        if role not in _ROLES:
            raise refused(f"{where}.role must be one of {', '.join(_ROLES)}, got {role!r}", f"{where}.role")
        content = item.get("content")
        if content is None:
            raise refused(f"{where}.content is required", f"{where}.content")
        parts = _parts(content, f"{where}.content")
        if role != "assistant":
            self.messages.append({"role": role, "content": content if isinstance(content, str) else said(parts)})
            return
        if any(part["type"] != "text" for part in parts):
            raise refused(f"{where}: an assistant message may hold text only", f"{where}.content")
        text = "".join(part["text"] for part in parts)
        open_ = self._open(item)
        if open_ is None or (open_.get("content") is not None and not self._same_turn(item)):
            open_ = self._begin(item)
        open_["content"] = (open_.get("content") or "") + text

    def _call(self, item: dict[str, Any], where: str) -> None:
        function = {"name": need(item, "name", str, where), "arguments": need(item, "arguments", str, where)}
        call = {"id": need(item, "call_id", str, where), "type": "function", "function": function}
        message = self._open(item) or self._begin(item)
        message.setdefault("tool_calls", []).append(call)

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        if item.get("encrypted_content") is not None:
            raise refused(f"{where}: encrypted reasoning cannot be read here", f"{where}.encrypted_content")
        texts = get(item, "content", list, where) or get(item, "summary", list, where) or []
        text = "".join(need(an_object(t, where), "text", str, where) for t in texts)
        open_ = self._open(item)
        if open_ is None or ("reasoning" in open_ and not self._same_turn(item)):
            open_ = self._begin(item)
        open_["reasoning"] = open_.get("reasoning", "") + text

    def _output(self, item: dict[str, Any], where: str) -> None:
        output = item.get("output")
        call_id = need(item, "call_id", str, where)
        if output is None:
            raise refused(f"{where}.output is required", f"{where}.output")
        parts = _parts(output, f"{where}.output")
        texts = [p["text"] for p in parts if p["type"] == "text"]
        self.messages += result_messages(call_id, texts, [p for p in parts if p["type"] != "text"])

    def _open(self, item: dict[str, Any]) -> dict[str, Any] | None:
        """The last message, if it is an assistant's and of no other turn than the item's."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return None
        turn = _turn(item)
        if self._turn is not None and turn is not None and turn != self._turn:
            return None
        self._turn = self._turn or turn
        return self.messages[-1]

    def _same_turn(self, item: dict[str, Any]) -> bool:
        return self._turn is not None and _turn(item) == self._turn

    def _begin(self, item: dict[str, Any]) -> dict[str, Any]:
        self._turn = _turn(item)
        self.messages.append({"role": "assistant"})
        return self.messages[-1]


def item_id(prefix: str, base: str, index: int) -> str:
    """The id of an output item; ``base`` names its turn."""
    return f"{prefix}_{base}_{index}"


def _turn(item: dict[str, Any]) -> str | None:
    """The turn an item's id names, where the id has the form made here."""
    prefix, _, rest = str(item.get("id") or "").partition("_")
    base, _, index = rest.rpartition("_")
    return base if prefix in ("rs", "msg", "fc") and base and index.isdigit() else None


def _parts(content: Any, where: str) -> list[dict[str, Any]]:
    """Chat content parts of a string or a list."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise refused(f"{where} must be a string or a list of parts", where)
    return [_part(an_object(part, f"{where}[{i}]"), f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = need(part, "type", str, where)
    if kind in _TEXTS:
        return {"type": "text", "text": need(part, _TEXTS[kind], str, where)}
    if kind == "input_image":
        check_known(part, ("type", "image_url", "detail", "prompt_cache_breakpoint"), where)
        check_only(part, {"detail": ("auto", "low", "high")}, where)
        return image_part(need(part, "image_url", str, where), get(part, "detail", str, where))
    raise refused(f"{where}: a part of type {kind!r} is not supported, only text and input_image", f"{where}.type")
