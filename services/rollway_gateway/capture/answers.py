"""The assistant messages of one call, by choice, as the engine wrote them: a session remembers what it answered."""

from __future__ import annotations

from typing import Any


class Answers:
    """Filled from one whole answer, or delta by delta."""

    def __init__(self) -> None:
        self._texts: dict[int, dict[str, list[str]]] = {}
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}
        self._whole: dict[int, dict[str, Any]] = {}

    def take_whole(self, payload: dict[str, Any]) -> None:
        """Of an answer that is not changed after but for fields set to null."""
        for position, choice in enumerate(payload.get("choices") or ()):
            if isinstance(message := choice.get("message"), dict):
                self._whole[choice.get("index", position)] = dict(message)

    def take_delta(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if not delta:
            return
        index = choice.get("index", 0)
        texts = self._texts.setdefault(index, {})
        for name in ("content", "reasoning"):
            if delta.get(name):
                texts.setdefault(name, []).append(delta[name])
        for part in delta.get("tool_calls") or ():
            calls = self._calls.setdefault(index, {})
            call = calls.setdefault(part.get("index", 0), {"function": {"name": "", "arguments": ""}})
            call |= {key: part[key] for key in ("id", "type") if part.get(key)}
            for key in ("name", "arguments"):
                call["function"][key] += (part.get("function") or {}).get(key) or ""

    def messages(self) -> dict[int, dict[str, Any]]:
        """Assistant messages by choice."""
        streamed: dict[int, dict[str, Any]] = {
            index: {"role": "assistant", "content": None, **{name: "".join(parts) for name, parts in texts.items()}}
            for index, texts in self._texts.items()
        }
        for index, calls in self._calls.items():
            streamed[index]["tool_calls"] = [calls[i] for i in sorted(calls)]
        return streamed | self._whole
