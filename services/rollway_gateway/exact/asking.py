"""What one call asks of its worker beside the answer itself. No question makes it sample."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from rollway_gateway.capture.answer import UNKNOWN_FORM
from rollway_gateway.connections import Connections
from rollway_gateway.exact.request import grammar_body
from rollway_gateway.upstream import post

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_MANNERS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
GRAMMARS = 64
"""So many are kept of a worker: its agents ask with the same tools turn after turn."""


class Unsaid(Exception):
    """The worker does not answer the question, and why."""


class Asked(Protocol):
    """What is needed of a worker."""

    @property
    def api_url(self) -> str: ...

    @property
    def grammars(self) -> dict[bytes, dict[str, Any]]: ...


class Asking:
    def __init__(self, client: Connections) -> None:
        self._client = client

    async def grammar(self, worker: Asked, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """``structured_outputs`` that the chat route would sample the answer to ``body`` with; empty: none.

        Messages do not decide it, so a stand-in is rendered in their place: the cost does not grow with the context.

        Raises:
            Unsaid: the worker does not say.
            WorkerLost, WorkerSilent: it could not be asked.
        """
        asked = orjson.dumps({**grammar_body(body), "model": model})
        key = hashlib.blake2b(asked, digest_size=16).digest()
        if (known := worker.grammars.get(key)) is not None:
            return known
        status, said = await self._post(worker.api_url + "/chat/completions/render", asked)
        try:
            if status != 200:
                raise Unsaid(f"/render answered {status}")
            found = _grammar(said["sampling_params"].get("structured_outputs") or {})
        except UNKNOWN_FORM as e:
            raise Unsaid(f"/render answered in an unknown form: {type(e).__name__}: {e}") from e
        while len(worker.grammars) >= GRAMMARS:
            del worker.grammars[next(iter(worker.grammars))]
        worker.grammars[key] = found
        return found

    async def read(self, worker: Asked, body: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """Assistant messages by choice, as the engine's own parsers read ids.

        Args:
            body: of /derender.

        Raises:
            Unsaid: it does not read them.
            WorkerLost, WorkerSilent: it could not be asked.
        """
        if not body["generate_response"]["choices"]:
            return {}
        status, said = await self._post(worker.api_url + "/chat/completions/derender", orjson.dumps(body))
        if status != 200:
            raise Unsaid(f"/derender answered {status}")
        try:
            return {choice["index"]: choice["message"] for choice in said["choices"]}
        except UNKNOWN_FORM as e:
            raise Unsaid(f"/derender answered in an unknown form: {type(e).__name__}: {e}") from e

    async def _post(self, url: str, body: bytes) -> tuple[int, Any]:
        async with post(self._client, url, body, {}) as response:
            raw = await response.read()
        try:
            return response.status, orjson.loads(raw) if response.status == 200 else None
        except orjson.JSONDecodeError as e:
            raise Unsaid(f"{url} did not answer JSON: {e}") from e


def _grammar(outputs: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: outputs[name] for name in _CONSTRAINTS if outputs.get(name) is not None}
    if not said:
        return {}
    return said | {name: outputs[name] for name in _MANNERS if outputs.get(name)}


def derender_body(
    model: str, chat: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], closers: frozenset[int]
) -> dict[str, Any]:
    """A /derender request for sampled ids; choices of which nothing is shown are left out of it.

    Args:
        chat: the request they answer; its messages are not looked at.
        choices: with ``index``, ``token_ids`` and ``finish_reason``.
        closers: tokens that end a turn, whose text no answer shows.
    """
    asked = {name: chat[name] for name in _READ if chat.get(name) is not None}
    shown = [_unclosed(c, closers) for c in choices]
    return {
        "model": model,
        "generate_response": {"request_id": "reading", "choices": [c for c in shown if c["token_ids"]]},
        "chat_request": {**asked, "model": model, "messages": [{"role": "user", "content": "Hi"}]},
    }


_READ = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "skip_special_tokens",
)


def _unclosed(choice: Mapping[str, Any], closers: frozenset[int]) -> dict[str, Any]:
    ids = list(choice["token_ids"])
    if ids and ids[-1] in closers and choice.get("finish_reason") == "stop":
        ids.pop()
    return {"index": choice["index"], "token_ids": ids, "finish_reason": choice.get("finish_reason")}
