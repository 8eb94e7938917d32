"""A streamed chat answer as Anthropic's events.

message_start  ( content_block_start  content_block_delta*  content_block_stop )*  message_delta  message_stop

A thinking block ends with a signature_delta. An answer that says nothing has one empty text block. An error ends the
stream wherever it stands.
"""

from __future__ import annotations

from typing import Any

from rollway_gateway.dialects.dialect import Failure
from rollway_gateway.dialects.events import event
from rollway_gateway.dialects.messages import answer
from rollway_gateway.dialects.messages.errors import error_object
from rollway_gateway.dialects.sampled import Grown, Part, SampledAnswer

_OPENED: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessagesEncoder:
    def __init__(self, stop_sequences: list[str]) -> None:
        self._stop_sequences = stop_sequences
        self._sampled = SampledAnswer()
        self._open: Part | None = None
        self._started = False
        self._over = False

    def feed(self, chunk: dict[str, Any]) -> bytes:
        if self._over:
            return b""
        grown = self._sampled.feed(chunk)
        out = [] if self._started else [self._start()]
        for addition in grown:
            out += self._grow(addition)
        return b"".join(out)

    def end(self) -> bytes:
        if self._over:
            return b""
        self._over = True
        out = [] if self._started else [self._start()]
        if not self._sampled.parts:
            out += self._grow(Grown(Part("text", 0), "", opened=True, logprobs=[]))
        reason, sequence = answer.stop_of(self._sampled, self._stop_sequences)
        out += self._close()
        out.append(
            event({
                "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": answer.usage(self._sampled.usage),
            })
        )  # fmt: skip
        return b"".join([*out, event({"type": "message_stop"})])

    def fail(self, failure: Failure) -> bytes:
        if self._over:
            return b""
        self._over = True
        return event(error_object(failure))

    def keep_alive(self) -> bytes:
        return event({"type": "ping"})

    def _start(self) -> bytes:
        self._started = True
        sampled = self._sampled
        message: dict[str, Any] = {
            "id": sampled.id, "type": "message", "role": "assistant", "content": [], "model": sampled.model,
            "stop_reason": None, "stop_sequence": None, "usage": {**answer.usage(sampled.usage), "output_tokens": 0},
        }  # fmt: skip
        return event({"type": "message_start", "message": message})

    def _grow(self, grown: Grown) -> list[bytes]:
        part, out = grown.part, []
        if grown.opened:
            out += self._close()
            self._open = part
            call = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
            block = call if part.kind == "call" else _OPENED[part.kind]
            out.append(event({"type": "content_block_start", "content_block": block, "index": part.index}))
        if grown.delta:
            kind, key = _DELTAS[part.kind]
            out.append(_delta({"type": kind, key: grown.delta}, part))
        return out

    def _close(self) -> list[bytes]:
        part, self._open = self._open, None
        if part is None:
            return []
        stop = event({"type": "content_block_stop", "index": part.index})
        if part.kind != "reasoning":
            return [stop]
        return [_delta({"type": "signature_delta", "signature": answer.signature(part, self._sampled.id)}, part), stop]


def _delta(delta: dict[str, Any], part: Part) -> bytes:
    return event({"type": "content_block_delta", "delta": delta, "index": part.index})
