"""Tool calls in the hermes form, read as vLLM's parser of that name reads them, whole and as they grow.

``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number of them, text before the first. The behaviour is
that of vLLM's `tool_parsers/hermes_tool_parser.py` and `parser/abstract_parser.py` (0.28 to 0.32), quirks included: an
agent is shown what plain vLLM shows, so a half mark at the end of a stream stays withheld here too.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALLS = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def read_calls(text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Content and tool calls of a whole answer. Text whose calls cannot be read is content as it stands."""
    if _OPEN not in text:
        return text, []
    calls = []
    try:
        for closed, open_ended in _CALLS.findall(text):
            said = json.loads(closed or open_ended)
            name, arguments = said["name"], json.dumps(said["arguments"], ensure_ascii=False)
            if not isinstance(name, str):
                return text, []
            calls.append({"id": call_id(), "type": "function", "function": {"name": name, "arguments": arguments}})
    except (ValueError, KeyError, TypeError, RecursionError):
        return text, []
    content = text[: text.find(_OPEN)]
    return content if content.strip() else None, calls


def call_id() -> str:
    """As vLLM names calls."""
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


@dataclass(slots=True)
class _Call:
    sent: str = ""
    """Arguments already shown."""


class HermesStream:
    """One choice's answer as it grows. Arguments are shown as sampled."""

    def __init__(self) -> None:
        self._text = ""
        self._shown = 0
        self._from = -1
        """Where the first call begins; -1: none yet."""
        self._calls: list[_Call] = []

    def feed(self, text: str, *, finished: bool) -> dict[str, Any] | None:
        """The delta for the next piece of text; None: nothing to show."""
        looked = max(0, len(self._text) - len(_OPEN))
        self._text += text
        if self._from < 0:
            self._from = self._text.find(_OPEN, looked)
        content = self._content()
        calls = self._grown() if self._from >= 0 else []
        if content is None and not calls:
            return None
        if calls and finished:
            function = calls[-1]["function"]
            unsaid = "" if self._calls[-1].sent else "{}"
            function["arguments"] = function.get("arguments", "") + unsaid
        return {"content": content, "tool_calls": calls} if calls else {"content": content}

    def _content(self) -> str | None:
        end = self._from if self._from >= 0 else len(self._text) - _half(self._text, _OPEN)
        if end <= self._shown:
            return None
        piece = self._text[self._shown : end]
        self._shown = end
        return piece

    def _grown(self) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for index, (said, complete) in enumerate(self._regions()):
            if index == len(self._calls):
                name = _NAME.search(said)
                if name is None:
                    break
                self._calls.append(_Call())
                deltas.append({"id": call_id(), "type": "function", "index": index, "function": {"name": name[1]}})
            arguments = _arguments(said, complete)
            sent = self._calls[index].sent
            if arguments is not None and len(arguments) > len(sent):
                self._calls[index].sent = arguments
                deltas.append({"index": index, "function": {"arguments": arguments[len(sent) :]}})
        return deltas

    def _regions(self) -> list[tuple[str, bool]]:
        """What each call holds so far, and whether it is complete."""
        found: list[tuple[str, bool]] = []
        start = self._from
        while start >= 0:
            begin = start + len(_OPEN)
            end = self._text.find(_CLOSE, begin)
            if end < 0:
                said = self._text[begin:]
                said = said[: len(said) - _half(said, _CLOSE)].strip()
                found.append((said, bool(said) and _is_json(said)))
                break
            found.append((self._text[begin:end].strip(), True))
            start = self._text.find(_OPEN, end + len(_CLOSE))
        return found


def _half(text: str, mark: str) -> int:
    """How many characters at the end may be the beginning of ``mark``."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _arguments(said: str, complete: bool) -> str | None:
    found = _ARGUMENTS.search(said)
    if found is None:
        return None
    raw = said[found.end() :]
    if complete:
        raw = raw.rstrip()
        if raw.endswith("}"):
            raw = raw[:-1].rstrip()
    return raw
