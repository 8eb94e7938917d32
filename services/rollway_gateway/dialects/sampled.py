"""What the engine answered to a chat request, as ordered parts: the one form both dialects are written from.

A whole answer gives reasoning, then text, then tool calls. A streamed one gives them in the order they came, and what
comes beside an open tool call waits until that call is over, since its arguments may still grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["reasoning", "text", "call"]


class UnreadableChunk(ValueError):
    """A chunk that contradicts those before it."""


@dataclass(slots=True, eq=False)
class Part:
    """One stretch of reasoning or text, or one tool call."""

    kind: Kind
    index: int
    """Its place in the answer."""
    pieces: list[str] = field(default_factory=list)
    call: int = -1
    """The tool call's number in the chat answer."""
    call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """The text, or a tool call's arguments as sampled."""
        return "".join(self.pieces)


@dataclass(slots=True)
class Grown:
    """What a chunk added to a part; the first for a part opens it, also with an empty ``delta``."""

    part: Part
    delta: str
    opened: bool
    logprobs: list[dict[str, Any]]
    """Of the chunk, on the first addition to a text it made."""


class SampledAnswer:
    """Filled from one whole answer, or chunk by chunk. Only the first choice is read."""

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.created = 0
        self.parts: list[Part] = []
        self.finish: str | None = None
        self.stop: str | None = None
        """The stop string that ended it."""
        self.usage: dict[str, Any] | None = None
        self.logprobs: list[dict[str, Any]] | None = None
        """One per sampled token shown, the engine's own entries; None: not asked for."""
        self._held: list[tuple[Kind, str]] = []

    # -- whole

    @classmethod
    def whole(cls, chat: dict[str, Any]) -> SampledAnswer:
        self = cls()
        self._head(chat)
        choice = chat["choices"][0]
        message = choice["message"]
        for kind, text in (("reasoning", message.get("reasoning")), ("text", message.get("content"))):
            if text:
                self._open(kind, text)  # type: ignore[arg-type]
        for number, call in enumerate(message.get("tool_calls") or ()):
            part = self._open("call", call["function"].get("arguments") or "")
            part.call, part.call_id, part.name = number, call["id"], call["function"]["name"]
        self._logprobs(choice)
        self._finish(choice)
        return self

    # -- chunk by chunk

    def feed(self, chunk: dict[str, Any]) -> list[Grown]:
        """What the chunk added, in order.

        Raises:
            UnreadableChunk: it goes on with a tool call that another has followed.
        """
        self._head(chunk)
        out: list[Grown] = []
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            self._texts(delta, out)
            for call in delta.get("tool_calls") or ():
                self._call(call, out)
            new = self._logprobs(choice)
            first = next((g for g in out if g.part.kind == "text"), None)
            if new and first is not None:
                first.logprobs = new
            if choice.get("finish_reason") is not None:
                self._finish(choice)
                self._release(out)
        return out

    def _head(self, payload: dict[str, Any]) -> None:
        self.id = self.id or payload.get("id") or ""
        self.model = self.model or payload.get("model") or ""
        self.created = self.created or payload.get("created") or 0
        if payload.get("usage") is not None:
            self.usage = payload["usage"]

    def _texts(self, delta: dict[str, Any], out: list[Grown]) -> None:
        given: tuple[tuple[Kind, Any], ...] = (("reasoning", delta.get("reasoning")), ("text", delta.get("content")))
        for kind, text in given:
            if not text:
                continue
            if self.parts and self.parts[-1].kind == "call":
                self._held.append((kind, text))
            else:
                self._grow(kind, text, out)

    def _grow(self, kind: Kind, text: str, out: list[Grown]) -> None:
        opened = not self.parts or self.parts[-1].kind != kind
        part = self._open(kind) if opened else self.parts[-1]
        part.pieces.append(text)
        out.append(Grown(part, text, opened, []))

    def _call(self, call: dict[str, Any], out: list[Grown]) -> None:
        number, function = call.get("index") or 0, call.get("function") or {}
        arguments = function.get("arguments") or ""
        last = self.parts[-1] if self.parts and self.parts[-1].kind == "call" else None
        opened = last is None or last.call != number
        if opened:
            if any(p.call == number for p in self.parts):
                raise UnreadableChunk(f"the engine's stream goes on with tool call {number} after it was over")
            self._release(out)
            last = self._open("call")
            last.call, last.call_id, last.name = number, call["id"], function["name"]
        assert last is not None
        if arguments:
            last.pieces.append(arguments)
        if opened or arguments:
            out.append(Grown(last, arguments, opened, []))

    def _release(self, out: list[Grown]) -> None:
        held, self._held = self._held, []
        for kind, text in held:
            self._grow(kind, text, out)

    def _open(self, kind: Kind, text: str = "") -> Part:
        part = Part(kind, len(self.parts), [text] if text else [])
        self.parts.append(part)
        return part

    def _logprobs(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        new: list[dict[str, Any]] = (choice.get("logprobs") or {}).get("content") or []
        if new:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += new
        return new

    def _finish(self, choice: dict[str, Any]) -> None:
        self.finish = choice.get("finish_reason")
        stop = choice.get("stop_reason")
        self.stop = stop if isinstance(stop, str) else None

    # -- what it holds

    @property
    def calls(self) -> list[Part]:
        return [p for p in self.parts if p.kind == "call"]

    def message(self) -> dict[str, Any]:
        """The assistant message, as a chat agent would send it back."""
        text = "".join(p.text for p in self.parts if p.kind == "text")
        reasoning = "".join(p.text for p in self.parts if p.kind == "reasoning")
        out: dict[str, Any] = {"role": "assistant"}
        if text or not self.calls:
            out["content"] = text
        if reasoning:
            out["reasoning"] = reasoning
        if self.calls:
            out["tool_calls"] = [
                {"id": p.call_id, "type": "function", "function": {"name": p.name, "arguments": p.text}}
                for p in self.calls
            ]
        return out
