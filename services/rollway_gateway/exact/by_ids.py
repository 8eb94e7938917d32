"""One chat request said with prompt ids, and its answer read, as far as it takes questions to the engine."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Protocol

from rollway_gateway.exact.as_chat import AsChat
from rollway_gateway.exact.asking import Asked, Asking, Unsaid, derender_body
from rollway_gateway.exact.request import needs_grammar, only_chat, token_body
from rollway_gateway.exact.standing import Exact


class Reads(Asked, Protocol):
    """What is needed of a worker."""

    @property
    def readings(self) -> int: ...


async def said_by_ids(
    asking: Asking, worker: Reads, asked: Mapping[str, Any], exact: Exact, prompt_ids: array[int],
    written: bytes | None,
) -> dict[str, Any]:  # fmt: skip
    """The completion request, but for the model's name.

    Args:
        asked: the chat request, with the model's name.
        written: ``prompt_ids`` as a JSON array; None: still to be made.

    Raises:
        Unsaid: ids cannot say it, and why.
        WorkerLost, WorkerSilent: as `Asking.grammar`.
    """
    if (reason := only_chat(asked, exact)) is not None:
        raise Unsaid(reason)
    if len(exact.thinking) > 1 and not worker.readings:
        raise Unsaid("the engine has not shown yet how it reads reasoning")
    grammar: dict[str, Any] = {}
    if needs_grammar(asked):
        try:
            grammar = await asking.grammar(worker, asked["model"], asked)
        except Unsaid as e:
            raise Unsaid(f"the engine's grammar for the tools is not known: {e}") from e
    if "json" in grammar and exact.tools == "hermes":
        raise Unsaid("the engine forces calls as bare JSON, which is not read here")
    body = token_body(asked, prompt_ids, exact, written=written, grammar=grammar or None)
    if body is None:
        raise Unsaid("the prompt leaves no room for an answer")
    return body


async def read_by_engine(
    asking: Asking, worker: Asked, asked: Mapping[str, Any], exact: Exact, as_chat: AsChat, answer: dict[str, Any]
) -> dict[str, Any]:
    """A whole chat answer with its messages as the engine's own parsers read them.

    Raises:
        Unsaid, WorkerLost, WorkerSilent: as `Asking.read`.
    """
    body = derender_body(asked["model"], asked, answer["choices"], exact.template.vocabulary.stop_ids)
    return as_chat.told(answer, await asking.read(worker, body))
