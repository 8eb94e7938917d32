"""One choice's sampled text and ids as the assistant message that the engine's own parsers would have made of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollway_gateway.exact.hermes import HermesStream, read_calls
from rollway_gateway.exact.request import calls_tools, forces_call, options_of
from rollway_gateway.exact.standing import Exact
from rollway_gateway.exact.thinking import Marks, ThinkingStream


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers to one request are read."""

    marks: Marks | None
    """Of reasoning; None: the engine has no parser for it."""
    thinks: bool
    """An answer may hold reasoning: qwen3's parser looks for none where the request switches thinking off."""
    over: bool
    """A stream begins behind the reasoning."""
    calls: bool
    """Tool calls in the hermes form are read."""
    forced: bool
    """A call was forced: a whole answer's content is never null."""
    parses: bool
    """The engine has a tool parser: it streams no empty text."""

    @classmethod
    def of(cls, body: Mapping[str, Any], exact: Exact, prompt_ids: array[int]) -> Reading:
        """
        Args:
            body: the chat request.
        """
        marks = exact.marks
        off = marks is not None and marks.kind == "qwen3" and not options_of(body).kwargs.get("enable_thinking", True)
        return cls(
            marks=marks, thinks=not off, over=marks is None or off or marks.over(prompt_ids),
            calls=calls_tools(body) and exact.parses and exact.tools == "hermes", forced=forces_call(body),
            parses=exact.parses,
        )  # fmt: skip

    def whole(self, text: str) -> tuple[str | None, str | None, list[dict[str, Any]]]:
        """Reasoning, content and tool calls of a whole answer."""
        reasoning, content = self.marks.whole(text) if self.marks is not None and self.thinks else (None, text)
        calls: list[dict[str, Any]] = []
        if self.calls:
            read, calls = read_calls(content or "")
            content = read if calls or content is not None else None
        return reasoning, (content or "") if self.forced else content, calls

    def stream(self) -> ReadingStream:
        return ReadingStream(self)


class ReadingStream:
    """Of one choice, piece by piece."""

    def __init__(self, how: Reading) -> None:
        self._how = how
        self._thinking = None if how.marks is None or how.over else ThinkingStream(how.marks)
        self._calls = HermesStream() if how.calls else None

    def feed(self, text: str, ids: Iterable[int], *, finished: bool) -> dict[str, Any]:
        """The delta that one more piece shows; may be empty."""
        thinking = self._thinking
        if thinking is None or thinking.over:
            return self._content(text, finished=finished)
        reasoning, rest = thinking.feed(text, ids, finished=finished)
        shown = rest is not None and (rest or self._calls is not None)
        delta: dict[str, Any] = self._content(rest or "", finished=finished) if shown else {}
        if not reasoning:
            return delta
        out = {"content": delta["content"]} if "content" in delta else {}
        out["reasoning"] = reasoning
        return out | ({"tool_calls": delta["tool_calls"]} if "tool_calls" in delta else {})

    def _content(self, text: str, *, finished: bool) -> dict[str, Any]:
        if self._calls is not None:
            return self._calls.feed(text, finished=finished) or {}
        return {"content": text} if text or not self._how.parses else {}


def said(pieces: Sequence[Mapping[str, Any]]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content, and names and arguments of the tool calls, of a message or of a stream's deltas."""
    reasoning = "".join(p.get("reasoning") or "" for p in pieces)
    content = "".join(p.get("content") or "" for p in pieces)
    calls: list[list[str]] = []
    for position, call in enumerate(c for p in pieces for c in p.get("tool_calls") or ()):
        if call.get("index", position) == len(calls):
            calls.append(["", ""])
        function = call.get("function") or {}
        calls[-1][0] += function.get("name") or ""
        calls[-1][1] += function.get("arguments") or ""
    return reasoning, content, [(name, arguments) for name, arguments in calls]
