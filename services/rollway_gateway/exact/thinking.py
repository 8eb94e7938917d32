"""Reasoning in ``<think>`` marks, read as vLLM's parsers read it, whole and as it grows.

Source of the behaviour: vLLM 0.28, `reasoning/basic_parsers.py` and `deepseek_r1_reasoning_parser.py`, and for qwen3
`parser/qwen3.py` with `parser/engine`. Quirks are kept, an agent being shown what plain vLLM shows: a whole answer is
read by its text, a stream by its token ids, so marks spelled by other tokens count only in the first; and a stream
whose prompt already closed a block is content from its start.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rollway_gateway.render.vocabulary import Vocabulary
from rollway_wire.tokens import IDS

Thinking = Literal["qwen3", "deepseek_r1"]
"""The parser, by the name that vLLM has for it."""

_OPEN, _CLOSE, _CALL, _CALL_END = "<think>", "</think>", "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Marks:
    """How one engine's parser reads one tokenizer's ids."""

    kind: Thinking
    open_id: int | None
    close_id: int | None
    call_id: int | None
    """A call ends the reasoning that it is sampled in. Of qwen3; None where it does not."""
    call_end_id: int | None
    dropped: dict[int, str]
    """Special tokens that are not shown. Of qwen3."""

    @classmethod
    def of(cls, kind: Thinking, vocabulary: Vocabulary) -> Marks:
        calls = kind == "qwen3"
        known = {_OPEN, _CLOSE, _CALL, _CALL_END}
        found = {vocabulary.id_of(t): t for t in vocabulary.special_texts if t not in known} if calls else {}
        return cls(
            kind, vocabulary.id_of(_OPEN), vocabulary.id_of(_CLOSE),
            vocabulary.id_of(_CALL) if calls else None, vocabulary.id_of(_CALL_END) if calls else None,
            {i: t for i, t in found.items() if i is not None},
        )  # fmt: skip

    def whole(self, text: str) -> tuple[str | None, str | None]:
        """Reasoning and content of a whole answer."""
        if self.kind == "deepseek_r1":
            head, opened, rest = text.partition(_OPEN)
            reasoning, closed, content = (rest if opened else head).partition(_CLOSE)
            return reasoning, (content or None) if closed else None
        return self._whole_qwen3(text)

    def _whole_qwen3(self, text: str) -> tuple[str | None, str | None]:
        marks = re.compile("|".join(map(re.escape, (_OPEN, _CLOSE, _CALL, *self.dropped.values()))))
        reasoning: list[str] = []
        content: list[str] = []
        into, at = reasoning, 0
        for found in marks.finditer(text):
            into.append(text[at : found.start()])
            at = found.end()
            mark = found[0]
            shown = mark == _CALL or (mark == _OPEN and into is content)
            if mark in (_CLOSE, _CALL):
                into = content
            if shown:
                into.append(mark)
        into.append(text[at:])
        return "".join(reasoning) or None, "".join(content) or None

    def over(self, prompt: array[int]) -> bool:
        """Whether a stream that answers them is content from its start: their last mark closes, or a call is open."""
        opened, closed = _last(prompt, self.open_id), _last(prompt, self.close_id)
        if closed > opened:
            return True
        return _last(prompt, self.call_id) > max(opened, _last(prompt, self.call_end_id))


def _last(ids: array[int], token_id: int | None) -> int:
    """Where an id occurs last; -1: nowhere. Found in the bytes, because looking at them one by one makes an object of
    each."""
    if token_id is None:
        return -1
    raw, wanted = ids.tobytes(), array(IDS, [token_id]).tobytes()
    at = raw.rfind(wanted)
    while at > 0 and at % ids.itemsize:  # across two ids
        at = raw.rfind(wanted, 0, at + ids.itemsize - 1)
    return at // ids.itemsize


class ThinkingStream:
    """One choice's answer as it grows, cut into reasoning and the rest. For streams of either parser."""

    def __init__(self, marks: Marks) -> None:
        self.over = False
        """The reasoning has ended."""
        self._marks = marks
        self._held = ""
        """Text in which a mark that was sampled is still to come."""
        self._due: deque[str] = deque()
        """Marks sampled whose text is not there yet: an engine holds text back for stop strings."""
        ids = {marks.open_id: _OPEN, marks.close_id: _CLOSE, marks.call_id: _CALL}
        self._known = {i: t for i, t in ids.items() if i is not None} | marks.dropped

    def feed(self, text: str, ids: Iterable[int], *, finished: bool) -> tuple[str, str | None]:
        """Reasoning and what follows it that one more piece shows; None: the reasoning goes on."""
        if self.over:
            return "", text
        self._due.extend(self._known[i] for i in ids if i in self._known)
        self._held += text
        reasoning: list[str] = []
        while self._due and (at := self._held.find(self._due[0])) >= 0:
            mark = self._due.popleft()
            reasoning.append(self._held[:at])
            self._held = self._held[at + len(mark) :]
            if mark in (_CLOSE, _CALL):
                self.over = True
                rest, self._held = ("" if mark == _CLOSE else mark) + self._held, ""
                return "".join(reasoning), rest
        if finished or not self._due:
            reasoning.append(self._held)
            self._held = ""
        return "".join(reasoning), None


class ThinkingCount:
    """Tokens of reasoning in one choice, as usage counts them."""

    def __init__(self, marks: Marks) -> None:
        self.tokens = 0
        self._marks = marks
        self._depth = int(marks.kind == "qwen3")
        """Blocks open; qwen3 begins inside one, and what follows its end is not looked at."""

    def add(self, ids: Iterable[int], *, shown: bool = True) -> None:
        """
        Args:
            shown: some text came with them. In a stream that begins with reasoning, qwen3's parser does not count the
                tokens of a piece without any.
        """
        marks = self._marks
        if marks.kind == "qwen3":
            for i in ids:
                if not self._depth:
                    return
                self._depth = int(i not in (marks.close_id, marks.call_id))
                self.tokens += self._depth and shown and i != marks.open_id and i not in marks.dropped
            return
        for i in ids:
            if i == marks.open_id:
                self._depth += 1
            elif i == marks.close_id:
                self._depth = max(0, self._depth - 1)
            elif self._depth:
                self.tokens += 1
