"""The Responses dialect, put together."""

from __future__ import annotations

from typing import Any

import orjson

from rollway_gateway.dialects.dialect import Failure
from rollway_gateway.dialects.fields import get, need
from rollway_gateway.dialects.responses import answer
from rollway_gateway.dialects.responses.items import chat_messages
from rollway_gateway.dialects.responses.kept import KeptResponse, ResponseStore, conversation
from rollway_gateway.dialects.responses.request import to_chat
from rollway_gateway.dialects.responses.stream import ResponsesEncoder
from rollway_gateway.dialects.sampled import SampledAnswer
from rollway_gateway.openai_errors import TYPES, AgentError


class ResponsesExchange:
    def __init__(self, body: dict[str, Any], store: ResponseStore) -> None:
        self._body = body
        self._store = store
        self._previous: str | None = get(body, "previous_response_id", str)
        before = self._before()
        given = need(body, "input", str if isinstance(body.get("input"), str) else list)
        self._new, continues = chat_messages(given)
        self.chat = to_chat(body, before + self._new, continues=continues)
        self._keeps = get(body, "store", bool) is not False

    def answer(self, chat: dict[str, Any]) -> dict[str, Any]:
        sampled = SampledAnswer.whole(chat)
        self._keep(sampled)
        return answer.finished(sampled, self._body)

    def stream(self) -> ResponsesEncoder:
        return ResponsesEncoder(self._body, self._keep)

    def _before(self) -> list[dict[str, Any]]:
        if self._previous is None:
            return []
        try:
            return conversation(self._store, self._previous)
        except KeyError as e:
            raise AgentError(
                404,
                f"Response with id '{e.args[0]}' not found: this session made no such response, made it with"
                " store=false, or has dropped it to make room for newer ones",
                param="previous_response_id",
            ) from None

    def _keep(self, sampled: SampledAnswer) -> None:
        if self._keeps:
            added = orjson.dumps([*self._new, sampled.message()])
            self._store.keep(answer.response_id(sampled), KeptResponse(self._previous, added))


class Responses:
    """See the package."""

    request_id_header = b"x-request-id"

    def open(self, body: dict[str, Any], kept: ResponseStore) -> ResponsesExchange:
        return ResponsesExchange(body, kept)

    def refuse(self, failure: Failure) -> tuple[int, dict[str, Any]]:
        kind = failure.kind or TYPES.get(failure.status, "InternalServerError")
        error = {"message": failure.message, "type": kind, "param": failure.param, "code": failure.status}
        return failure.status, {"error": error}
