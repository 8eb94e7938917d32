"""The assistant message of a stream, put together from what the agent was sent, for sessions that keep messages."""

from __future__ import annotations

from typing import Any

import orjson

from rollway_gateway.capture.answer import UNKNOWN_FORM
from rollway_gateway.capture.sse import DONE, SseBlocks, data_of


class StreamedMessage:
    """Of the first choice."""

    def __init__(self) -> None:
        self._blocks = SseBlocks()
        self._text: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def feed(self, shown: bytes) -> None:
        for block in self._blocks.feed(shown):
            data = data_of(block)
            if data is None or data == DONE:
                continue
            try:
                for choice in orjson.loads(data).get("choices") or ():
                    if choice.get("index") == 0:
                        self._take(choice.get("delta") or {"content": choice.get("text")})
            except UNKNOWN_FORM:  # not JSON, or JSON of another shape: not part of a message
                continue

    def _take(self, delta: dict[str, Any]) -> None:
        for name in ("content", "reasoning"):
            if delta.get(name):
                self._text.setdefault(name, []).append(delta[name])
        for part in delta.get("tool_calls") or ():
            call = self._calls.setdefault(part.get("index", 0), {"function": {"name": "", "arguments": ""}})
            call |= {k: part[k] for k in ("id", "type") if part.get(k)}
            for key in ("name", "arguments"):
                call["function"][key] += (part.get("function") or {}).get(key) or ""

    def dump(self) -> bytes:
        message: dict[str, Any] = {"role": "assistant", **{k: "".join(v) for k, v in self._text.items()}}
        if self._calls:
            message["tool_calls"] = [self._calls[i] for i in sorted(self._calls)]
        return orjson.dumps({"message": message})
