"""The Messages dialect, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollway_gateway.dialects.dialect import Failure
from rollway_gateway.dialects.messages import answer, errors
from rollway_gateway.dialects.messages.request import to_chat
from rollway_gateway.dialects.messages.stream import MessagesEncoder
from rollway_gateway.dialects.responses.kept import ResponseStore
from rollway_gateway.dialects.sampled import SampledAnswer


@dataclass(frozen=True, slots=True)
class MessagesExchange:
    chat: dict[str, Any]
    stop_sequences: list[str]

    def answer(self, chat: dict[str, Any]) -> dict[str, Any]:
        return answer.message(SampledAnswer.whole(chat), self.stop_sequences)

    def stream(self) -> MessagesEncoder:
        return MessagesEncoder(self.stop_sequences)


class Messages:
    """See the package."""

    request_id_header = b"request-id"

    def open(self, body: dict[str, Any], kept: ResponseStore) -> MessagesExchange:
        return MessagesExchange(to_chat(body), body.get("stop_sequences") or [])

    def refuse(self, failure: Failure) -> tuple[int, dict[str, Any]]:
        return errors.status_of(failure), errors.error_object(failure)
