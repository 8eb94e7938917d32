"""From an answer to the next prompt without touching what was sampled: the ids to append, or why there are none."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

import orjson
import xxhash

from rollway_gateway.render.messages import Message, texts
from rollway_gateway.render.template import Options, Refused, Template
from rollway_gateway.tree.messages import ExactTurn
from rollway_wire.problems import BadRequest
from rollway_wire.tokens import IDS

History = Literal["faithful", "continuous"]
"""What a later prompt shows of earlier reasoning. faithful: what the template shows, so where it drops reasoning the
session branches; continuous: everything sampled stays, whatever the template would drop."""


HEADS = 64
"""Renderings of what stands before an answer, kept for all sessions of a worker's template."""


class DriftReason(StrEnum):
    REWRITTEN = "history_rewritten"
    """The template changes text before the answer once messages follow it."""
    REASONING_DROPPED = "reasoning_dropped"
    """The template drops reasoning that the sequence holds."""
    REASONING_OPEN = "reasoning_open"
    """The answer was cut short inside its reasoning: where it would close is not ours to say."""
    NO_CLOSER = "no_closer"
    """Nothing in the rendering marks where the answer ends."""
    NOT_RENDERED = "answer_not_rendered"
    """The template leaves this answer out."""
    PREFILL = "prefill"
    """The request ends with an assistant message, or with nothing new."""
    REFUSED = "template_refused"
    """The template, or the request's own shape, forbids rendering these messages."""
    NOT_APPENDED = "not_appended"
    """A family's renderer declined, or did not keep the sampled ids."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Why a prompt does not extend the sequence it comes from. The call becomes a branch."""

    reason: DriftReason
    detail: str


class Bridge(Protocol):
    """Appends messages to an exact sequence."""

    @property
    def name(self) -> str:
        """What it is, for the certificate."""
        ...

    def extend(
        self, turn: ExactTurn, history: Sequence[Message], new: Sequence[Message], options: Options
    ) -> array[int] | Drift:
        """int32 ids that follow ``turn.ids()`` and end with the header of the next answer.

        Args:
            turn: the answer gone on from.
            history: the messages it answered.
            new: the messages after it, at least one.
        """
        ...


class DifferenceBridge:
    """Works for any template: renders a conversation around marked text and takes what follows the answer's closer.

    The answer is replaced by a mark, so nothing of it is rendered, let alone tokenised. In the rendering, the first
    turn-ending token after the mark closes the answer; what stands behind it is what the new messages add. Tokenised
    together with that closing token, which no merge crosses, it continues the sampled ids as the template would.

    Checked at each turn: the text before the answer is what it was without the new messages; reasoning that the
    sequence holds is still shown; the closer belongs to the answer and not to a new message; it stays one token.

    A turn that was cut short (length, a stop string) gets the closing token appended as context.
    """

    def __init__(
        self,
        template: Template,
        *,
        window: Literal["turn", "session"] = "turn",
        history: History = "faithful",
        closers: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            window: what is rendered around the answer. turn: system messages and one stand-in user message, so the
                cost is that of the new messages; session: all of the history, for templates that look further back.
            closers: tokens that end an answer in the rendering besides the engine's stop tokens.
        """
        self.window, self.history = window, history
        self._template = template
        self._vocabulary = template.vocabulary
        ids = (self._vocabulary.stop_ids | closers) & self._vocabulary.added_ids
        self._closers = {self._vocabulary.token_of(i): i for i in sorted(ids)}
        self._ends = self._vocabulary.stop_ids | closers
        self._heads: dict[bytes, str] = {}
        """By what they were rendered from."""

    @property
    def name(self) -> str:
        return "template difference"

    def extend(
        self, turn: ExactTurn, history: Sequence[Message], new: Sequence[Message], options: Options
    ) -> array[int] | Drift:
        if not new or new[-1].get("role") == "assistant":
            return Drift(DriftReason.PREFILL, "the request ends with an assistant message")
        before = self._around(history)
        closed = bool(turn.completion_ids) and turn.completion_ids[-1] in self._ends
        try:
            if not closed and self._stops_in_reasoning(turn, before, options):
                return Drift(DriftReason.REASONING_OPEN, "the answer ended before its reasoning did")
            found = self._tail(turn, before, new, options)
        except (Refused, BadRequest) as e:
            return Drift(DriftReason.REFUSED, e.detail)
        if isinstance(found, Drift):
            return found
        closer, tail = found
        ids = self._vocabulary.encode(closer + tail)
        if not ids or ids[0] != self._closers[closer]:
            return Drift(DriftReason.NO_CLOSER, f"{closer!r} is not one token where it closes the answer")
        return ids[1:] if closed else ids

    def _stops_in_reasoning(self, turn: ExactTurn, before: list[Message], options: Options) -> bool:
        """Whether an answer without a closing token ended inside a ``<think>`` block, its own or its header's."""
        start, end = (self._vocabulary.id_of(t) for t in ("<think>", "</think>"))
        if start is None or end is None:
            return False
        head = self._template.text(before, options, prompt=False)
        header = self._template.text(before, options).removeprefix(head)
        inside = header.rfind("<think>") > header.rfind("</think>")
        for token_id in turn.completion_ids:
            inside = token_id == start or (inside and token_id != end)
        return inside

    def _around(self, history: Sequence[Message]) -> list[Message]:
        if self.window == "session":
            return list(history)
        head = [m for m in history if m.get("role") in ("system", "developer")]
        return [*head, {"role": "user", "content": "Question"}]

    def _head(self, before: list[Message], options: Options, whole: str) -> str:
        """What stands before the answer where nothing follows it: the same turn after turn, tools and all. Rendered
        anew where ``whole`` does not begin with it: a template may show the date."""
        if self.window == "session":  # it is never the same again
            return self._template.text(before, options, prompt=False)
        try:
            key = xxhash.xxh3_128_digest(orjson.dumps([before, options.tools, options.kwargs]))
        except TypeError:  # no JSON, so no agent's
            return self._template.text(before, options, prompt=False)
        head = self._heads.get(key)
        if head is None or not whole.startswith(head):
            head = self._template.text(before, options, prompt=False)
            if len(self._heads) >= HEADS:
                self._heads.clear()  # at once: threads share it
            self._heads[key] = head
        return head

    def _tail(
        self, turn: ExactTurn, before: list[Message], new: Sequence[Message], options: Options
    ) -> tuple[str, str] | Drift:
        """The closer's text and all that stands behind it."""
        marks = _Marks([*before, *new])
        answer = marks.answer(turn)
        whole = self._template.text([*before, answer, *new], options)
        if not whole.startswith(head := self._head(before, options, whole)):
            return Drift(DriftReason.REWRITTEN, _difference(head, whole))
        if self.history == "faithful" and turn.reasoning and marks.reasoning not in whole:
            return Drift(DriftReason.REASONING_DROPPED, "the template drops earlier reasoning")
        if marks.text not in whole:
            return Drift(DriftReason.NOT_RENDERED, "the template leaves the answer out")
        marked = self._template.text([*before, answer, {**new[0], "content": marks.following}, *new[1:]], options)
        between = _after(marked, marks.text).partition(marks.following)[0]
        tail = _after(whole, marks.text)
        places = [(between.find(c), c) for c in self._closers if c in between]
        if not places:
            return Drift(
                DriftReason.NO_CLOSER, f"no turn-ending token between answer and next message: {between!r:.80}"
            )
        at, closer = min(places)
        end = at + len(closer)
        if tail[:end] != between[:end]:
            return Drift(DriftReason.REWRITTEN, _difference(between[:end], tail))
        return closer, tail[end:]


class _Marks:
    """Three texts that occur in none of the messages, to stand for an answer, its reasoning and what follows it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        taken = [text for m in messages for text in texts(m.get("content"))]
        n = 0
        while any(f"mark{n}of" in text for text in taken):
            n += 1
        self.text, self.reasoning, self.following = (f"mark{n}of{what}" for what in ("answer", "reasoning", "next"))

    def answer(self, turn: ExactTurn) -> Message:
        """The answer with its tool calls' names and ids, everything it says replaced by marks."""
        marked: dict[str, Any] = {"role": "assistant", "content": self.text}
        calls = turn.answer.get("tool_calls")
        if calls:
            marked["tool_calls"] = [self._call(c) for c in calls]
        if turn.reasoning == "field":
            marked["reasoning"] = self.reasoning
        elif turn.reasoning == "inline":
            marked["content"] = f"<think>\n{self.reasoning}\n</think>\n\n{self.text}"
        return marked

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        return {**call, "function": {**call["function"], "arguments": {self.text: self.text}}}


def _after(text: str, mark: str) -> str:
    return text[text.rindex(mark) + len(mark) :]


def _difference(expected: str, got: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), min(len(expected), len(got)))
    return f"the template changes earlier text at {expected[at : at + 40]!r}, which becomes {got[at : at + 40]!r}"


def array_of(ids: Sequence[int]) -> array[int]:
    """int32 ids from any sequence of them."""
    return array(IDS, ids)
