"""A streamed chat answer as OpenAI's response events, numbered from 0.

created  in_progress  ( output_item.added … output_item.done )*  completed | incomplete | failed

Within a message: content_part.added, output_text.delta*, output_text.done, content_part.done; within reasoning the same
with reasoning_part and reasoning_text; within a function call function_call_arguments.delta*, …done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollway_gateway.dialects.dialect import Failure
from rollway_gateway.dialects.events import event
from rollway_gateway.dialects.responses import answer
from rollway_gateway.dialects.sampled import Grown, Part, SampledAnswer

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"annotations": [], "text": "", "type": "output_text", "logprobs": []},
    "reasoning": {"text": "", "type": "reasoning_text"},
}
_PART_EVENTS = {"text": "response.content_part", "reasoning": "response.reasoning_part"}
_TEXT_EVENTS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}


class ResponsesEncoder:
    """``done`` is called with the final object before the event that carries it is given out."""

    def __init__(self, body: dict[str, Any], done: Callable[[SampledAnswer], None]) -> None:
        self._body = body
        self._done = done
        self._sampled = SampledAnswer()
        self._open: Part | None = None
        self._number = 0
        self._over = False

    def feed(self, chunk: dict[str, Any]) -> bytes:
        if self._over:
            return b""
        grown = self._sampled.feed(chunk)
        out = [] if self._number else self._start()
        for addition in grown:
            out += self._grow(addition)
        return b"".join(out)

    def end(self) -> bytes:
        if self._over:
            return b""
        self._over = True
        out = [] if self._number else self._start()
        out += self._close()
        final = answer.finished(self._sampled, self._body)
        self._done(self._sampled)
        return b"".join([*out, self._event(f"response.{final['status']}", response=final)])

    def fail(self, failure: Failure) -> bytes:
        if self._over:
            return b""
        self._over = True
        out = [] if self._number else self._start()
        final = answer.response(self._sampled, self._body, "failed")
        final["error"] = {"code": "server_error", "message": failure.message}
        return b"".join([*out, self._event("response.failed", response=final)])

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({**fields, "sequence_number": number, "type": kind})

    def _start(self) -> list[bytes]:
        made = answer.response(self._sampled, self._body, "in_progress")
        return [self._event("response.created", response=made), self._event("response.in_progress", response=made)]

    def _grow(self, grown: Grown) -> list[bytes]:
        part = grown.part
        out = [*self._close(), *self._begin(part)] if grown.opened else []
        if grown.delta:
            extra = {"logprobs": [_bare(entry) for entry in grown.logprobs]} if part.kind == "text" else {}
            out.append(self._event(f"{_TEXT_EVENTS[part.kind]}.delta", delta=grown.delta, **self._place(part), **extra))
        return out

    def _begin(self, part: Part) -> list[bytes]:
        self._open = part
        name = answer.name_of(part, self._sampled)
        if part.kind == "call":
            item = {**answer.call_item(part, self._sampled, "in_progress"), "arguments": ""}
            return [self._event("response.output_item.added", item=item, output_index=part.index)]
        common = {"id": name, "content": [], "status": "in_progress"}
        item = (
            {**common, "role": "assistant", "type": "message", "phase": None}
            if part.kind == "text"
            else {**common, "summary": [], "type": "reasoning", "encrypted_content": None}
        )
        return [
            self._event("response.output_item.added", item=item, output_index=part.index),
            self._event(f"{_PART_EVENTS[part.kind]}.added", part=_EMPTY[part.kind], **self._place(part)),
        ]

    def _close(self) -> list[bytes]:
        part, self._open = self._open, None
        if part is None:
            return []
        place = self._place(part)
        ended = f"{_TEXT_EVENTS[part.kind]}.done"
        if part.kind == "call":
            out = [self._event(ended, arguments=part.text, name=part.name, **place)]
        else:
            extra: dict[str, Any] = {"logprobs": []} if part.kind == "text" else {}
            whole = answer.content(part, self._sampled, self._body)
            out = [
                self._event(ended, text=part.text, **place, **extra),
                self._event(f"{_PART_EVENTS[part.kind]}.done", part=whole, **place),
            ]
        item = answer.item(part, self._sampled, self._body)
        return [*out, self._event("response.output_item.done", item=item, output_index=part.index)]

    def _place(self, part: Part) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": answer.name_of(part, self._sampled), "output_index": part.index}
        return place if part.kind == "call" else {"content_index": 0, **place}


def _bare(entry: dict[str, Any]) -> dict[str, Any]:
    """A log-prob as the delta event has it, without bytes."""
    top = [{"token": t["token"], "logprob": t["logprob"]} for t in entry.get("top_logprobs") or ()]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}
