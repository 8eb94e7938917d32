"""A streamed answer: each event read once, its evidence taken, and sent on as plain vLLM would have sent it.

Three things differ from a whole answer. An engine asked for token ids sends an event for tokens that change nothing
the agent sees (``"delta": {}``); plain vLLM does not, so they are dropped. An engine asked for usage sends one more
chunk, dropped unless the agent asked. And it then puts ``system_fingerprint`` there instead of on each choice's last
chunk; it is put back, from the last stream of the same worker where one is known. Only the first stream of a worker
holds its last chunks until the usage chunk, which follows at once when a call has one choice.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Protocol

import orjson

from rollway_gateway.capture.answer import UNKNOWN_FORM, logprob_values
from rollway_gateway.capture.answers import Answers
from rollway_gateway.capture.ask import Ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.prompt_ids import PromptIds
from rollway_gateway.capture.sse import DONE, data_of
from rollway_gateway.capture.usual_event import UsualEvent


class Fingerprint:
    """A worker's ``system_fingerprint`` as its streams showed it."""

    __slots__ = ("known", "value")

    def __init__(self) -> None:
        self.known = False
        self.value: str | None = None
        """None once known: this engine sends none."""

    def learn(self, value: str | None) -> None:
        self.known, self.value = True, value

    def forget(self) -> None:
        self.known, self.value = False, None


class Translator(Protocol):
    """Tells a stream of another route again as what the agent asked for. The last chunk of a choice may carry
    ``routed_experts``, which are taken and not shown."""

    def chunks(self, payload: dict[str, Any]) -> list[dict[str, Any]]: ...


class StreamFilter:
    """Takes the blocks of one stream in order and gives what the agent gets for each."""

    __slots__ = (
        "_answers",
        "_ask",
        "_cut",
        "_echoed",
        "_evidence",
        "_fingerprint",
        "_first",
        "_forced_usage",
        "_held",
        "_prompt",
        "_translator",
        "_usual",
        "done",
        "error",
        "head",
    )

    def __init__(
        self, ask: Ask, evidence: Evidence, fingerprint: Fingerprint, *, translator: Translator | None = None,
        answers: Answers | None = None, prompt: PromptIds | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            answers: filled with the assistant messages.
            prompt: took the prompt's ids out of the blocks.
        """
        self._translator, self._answers, self._prompt = translator, answers, prompt
        self._ask = ask
        self._usual = UsualEvent() if translator is None and ask.kind == "chat" and ask.shows_text_alone else None
        self._evidence = evidence
        self._first: tuple[array[int], array[float]] | None = None
        """Ids and log-probs of the only choice of a stream with usual events."""
        self._fingerprint = fingerprint
        self._forced_usage = False
        """The engine is set to report usage on every chunk, asked or not; the agent would see it on plain vLLM."""
        self._held: list[dict[str, Any]] = []
        self._echoed: set[int] = set()
        self._cut: dict[str, Any] | None = None
        """The chunk that says that the engine aborted."""
        self.head: dict[str, Any] = {}
        """``id`` and ``created`` of the answer."""
        self.done = False
        """[DONE] was read."""
        self.error: bytes | None = None
        """The event with the error that the engine ended the stream with."""

    @property
    def ended(self) -> bool:
        """By [DONE], by an error or by an abort."""
        return self.done or self.error is not None or self._evidence.aborted

    def go_on(self, translator: Translator) -> bytes:
        """Another stream goes on with the answer that was cut; what the agent gets for the cut chunk."""
        self._translator, self._usual = translator, None
        cut, self._cut = self._cut, None
        if cut is None:
            return b""
        kept = [c for c in cut["choices"] if c.get("delta") or c.get("token_ids")]
        for choice in kept:
            choice["finish_reason"] = None
            choice.pop("stop_reason", None)
        return _event({**cut, "choices": kept}) if kept else b""

    def blocks(self, blocks: Iterable[bytes]) -> bytes:
        """What the agent gets for several, up to one that says that the engine aborted or failed."""
        shown = []
        for block in blocks:
            shown.append(self.block(block))
            if self._evidence.aborted or self.error is not None:
                break
        return b"".join(shown)

    def block(self, block: bytes) -> bytes:
        """What the agent gets for one block; may be empty, and stops at an abort (`Evidence.aborted`)."""
        if (usual := self.usual(block)) is not None:
            return usual
        data = data_of(block)
        if data is None or not self._ask.captured:
            self.done |= data == DONE
            return block + b"\n\n"
        if data == DONE:
            self.done = True
            return self.release() + b"data: [DONE]\n\n"
        try:
            payload = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._evidence.fail("an event of the stream is not JSON")
            return block + b"\n\n"
        if not isinstance(payload, dict) or "error" in payload:
            self.error = block
            return b""
        if self._usual is not None:
            self._usual.learn(block)
        if self._prompt is not None:
            self._prompt.put_back(payload)
        try:
            if self._translator is None:
                return self._chunk(payload)
            return b"".join([self._chunk(p) for p in self._translator.chunks(payload)])
        except UNKNOWN_FORM as e:
            self._evidence.fail(f"an event of the stream has an unknown form: {type(e).__name__}: {e}")
            return block + b"\n\n"

    def usual(self, block: bytes) -> bytes | None:
        """What the agent gets for a block of the usual form, which may come with its blank line; None: it is another,
        and nothing was taken."""
        if self._usual is None or (found := self._usual.read(block)) is None:
            return None
        name, text, logprob, token, shown = found
        if self._answers is not None:
            self._answers.take_delta({"index": 0, "delta": {name.decode(): orjson.loads(text)}})
        if self._first is None:
            choice = self._evidence.choice(0)
            self._first = choice.ids, choice.logprobs
        ids, logprobs = self._first
        ids.append(token)
        logprobs.append(logprob)
        return shown

    def end_with_error(self) -> bytes:
        """The error is the answer's end."""
        error, self.error = self.error or b"", None
        said = (data_of(error) or b"")[:300].decode(errors="replace")
        self._evidence.fail(f"the engine ended the stream with an error: {said}")
        self._evidence.errored = self.done = True
        return self.release() + error + b"\n\ndata: [DONE]\n\n"

    def release(self) -> bytes:
        """The chunks still held."""
        held, self._held = self._held, []
        if self._fingerprint.value is not None:
            for payload in held:
                payload["system_fingerprint"] = self._fingerprint.value
        return b"".join(map(_event, held))

    def _chunk(self, payload: dict[str, Any]) -> bytes:
        choices = payload.get("choices")
        if not choices:
            return self._usage_chunk(payload)
        if "usage" in payload and not self._ask.shows_usage:
            self._forced_usage = True
        if (prompt := payload.get("prompt_token_ids")) is not None:
            self._evidence.take_prompt(prompt)
            if not self._ask.shows_ids:
                payload["prompt_token_ids"] = None
        if not self.head:
            self.head = {name: payload[name] for name in ("id", "created") if name in payload}
        kept = [c for c in choices if self._choice(c)]
        if self._evidence.aborted:
            self._cut = payload
            return b""
        if not kept:
            return b""
        if len(kept) != len(choices):
            payload["choices"] = kept
        if not self._ask.shows_usage and not self._forced_usage and any(c.get("finish_reason") for c in kept):
            return self._last_chunk(payload)
        return _event(payload)

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Take one choice's delta and strip it; False when plain vLLM would not have sent it."""
        ask = self._ask
        if self._answers is not None:
            self._answers.take_delta(choice)
        found = self._evidence.choice(choice.get("index", 0))
        ids, logprobs, finish = choice.get("token_ids"), choice.get("logprobs"), choice.get("finish_reason")
        if ids is not None or logprobs is not None:
            found.take(ids, logprob_values(ask.kind, logprobs))
        if finish is not None:
            found.end(finish)
            self._evidence.aborted |= finish == "abort"
            found.routed_experts = choice.pop("routed_experts", None)  # of no chunk that a chat or completion has
        if ids is not None and not (ask.shows_ids and ask.shows_reasoning):
            choice["token_ids"] = None
        if logprobs is not None and not (ask.shows_logprobs and ask.shows_reasoning):
            choice["logprobs"] = None
        if ask.kind == "text":
            self._text_choice(choice)
            return True
        if not ask.shows_reasoning:
            _hide_reasoning(choice)
        shown = ask.shows_ids and ask.shows_reasoning
        return bool(finish is not None or shown or choice.get("delta"))

    def _text_choice(self, choice: dict[str, Any]) -> None:
        ask, index = self._ask, choice.get("index", 0)
        if (prompt := choice.get("prompt_token_ids")) is not None:
            self._evidence.choice(index).take_prompt(prompt)
            if not ask.shows_ids and not ask.echo:  # an echoing vLLM shows them on a stream, asked or not
                choice["prompt_token_ids"] = None
        if ask.echoed and index not in self._echoed:
            self._echoed.add(index)
            choice["text"] = ask.echoed[index // ask.n] + choice["text"]

    def _usage_chunk(self, payload: dict[str, Any]) -> bytes:
        self._evidence.take_usage(payload.get("usage"))
        if not self._forced_usage:
            self._fingerprint.learn(payload.get("system_fingerprint"))
        held = self.release()
        return held + _event(payload) if self._ask.shows_usage or self._forced_usage else held

    def _last_chunk(self, payload: dict[str, Any]) -> bytes:
        if "system_fingerprint" in payload:  # an engine that puts it here in any case
            return _event(payload)
        if not self._fingerprint.known:
            self._held.append(payload)
            return b""
        if self._fingerprint.value is not None:
            payload["system_fingerprint"] = self._fingerprint.value
        return _event(payload)


def _hide_reasoning(choice: dict[str, Any]) -> None:
    """As vLLM does: a delta of nothing but reasoning is not sent, any other has ``reasoning`` null."""
    delta = choice.get("delta")
    if not delta or "role" in delta:
        return
    if not delta.get("content") and not delta.get("tool_calls"):
        choice["delta"] = {}
        return
    delta.pop("reasoning", None)
    calls = delta.pop("tool_calls", None)
    delta["reasoning"] = None
    if calls is not None:
        delta["tool_calls"] = calls


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
