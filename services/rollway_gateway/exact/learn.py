"""What an engine's own answers say of how it reads them: held against how they would be read here."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rollway_gateway.exact.reader import Reading, said
from rollway_gateway.exact.request import calls_tools, needs_grammar, shows_special
from rollway_gateway.exact.standing import READS_OTHERWISE, Exact, Standing
from rollway_wire.tokens import Turn

READINGS = 16
"""So many of a worker's first chat answers are read here too."""
_CUT = "\ufffd"
"""How a character of which a part was sampled is decoded; an engine holds it back."""


class Learnt(Protocol):
    """What is needed of a worker."""

    standing: Standing
    readings: int


def learn(
    worker: Learnt, body: Mapping[str, Any], turns: Sequence[Turn], answers: Mapping[int, Mapping[str, Any]]
) -> str | None:
    """A worker's first chat answers show how it reads them; why it is not to be trusted, where one shows that.

    Args:
        body: the request that ``turns`` answer.
        answers: the messages by choice, as the engine gave them.
    """
    for turn in turns:
        exact = worker.standing.exact
        if exact is None or worker.readings >= READINGS:
            return None
        left = narrowed(exact, body, turn, answers[turn.choice])
        if left is None:
            return READS_OTHERWISE
        if left is not exact:
            worker.readings += 1
            if left.thinking != exact.thinking:
                worker.standing = replace(worker.standing, exact=left)
    return None


def narrowed(exact: Exact, body: Mapping[str, Any], turn: Turn, answer: Mapping[str, Any]) -> Exact | None:
    """What is left to believe of an engine after one answer of its chat route; None: nothing. ``exact``
    itself where the answer says nothing of it.

    Args:
        body: the request that ``turn`` answers.
        answer: the message as the engine gave it.
    """
    if calls_tools(body) and exact.parses and (exact.tools != "hermes" or needs_grammar(body)):
        return exact
    ids, vocabulary = turn.completion_token_ids, exact.template.vocabulary
    if turn.finish_reason != "length":
        if not ids or ids[-1] not in vocabulary.stop_ids or body.get("include_stop_str_in_output"):
            return exact  # ended by a stop string: the text is cut where the ids are not
        ids = ids[:-1]

    def text(one: Exact) -> str:
        return vocabulary.shown(ids, special=shows_special(body, one)).rstrip(_CUT)

    return explaining(exact, body, turn.prompt_token_ids, ids, text, answer)


def explaining(
    exact: Exact, body: Mapping[str, Any], prompt: array[int], ids: array[int], text: Callable[[Exact], str],
    answer: Mapping[str, Any],
) -> Exact | None:  # fmt: skip
    """``exact`` with the ways to read reasoning that make ``answer`` of these ids; None: there are none."""
    given = _comparable(body, [answer])
    left = []
    for marks in exact.thinking:
        one = replace(exact, thinking=(marks,))
        if _comparable(body, [_read(one, body, prompt, ids, text(one))]) == given:
            left.append(marks)
    return replace(exact, thinking=tuple(left)) if left else None


def _read(exact: Exact, body: Mapping[str, Any], prompt: array[int], ids: array[int], text: str) -> Mapping[str, Any]:
    reading = Reading.of(body, exact, prompt)
    if body.get("stream"):
        return reading.stream().feed(text, ids, finished=True)
    reasoning, content, calls = reading.whole(text)
    return {"reasoning": reasoning, "content": content, "tool_calls": calls}


def _comparable(body: Mapping[str, Any], pieces: Sequence[Mapping[str, Any]]) -> Any:
    reasoning, content, calls = said(pieces)
    kept = calls[:1] if body.get("parallel_tool_calls") is False else calls
    return reasoning, content.rstrip(_CUT), [(name, _loaded(arguments)) for name, arguments in kept]


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")  # a stream may leave out the arguments of a call that has none
    except ValueError:
        return arguments
