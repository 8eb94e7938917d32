"""Which route speaks which dialect."""

from __future__ import annotations

from rollway_gateway.dialects.dialect import Dialect
from rollway_gateway.dialects.messages.dialect import Messages
from rollway_gateway.dialects.responses.dialect import Responses

COUNT_TOKENS = "/messages/count_tokens"
_BY_FIRST_SEGMENT: dict[str, Dialect] = {"responses": Responses(), "messages": Messages()}


def dialect_of(route: str) -> Dialect | None:
    """The dialect of a route after /v1, also of one that is not served: its errors are the provider's. None: OpenAI's
    chat and the rest, which need no translation."""
    return _BY_FIRST_SEGMENT.get(route.split("/")[1] if "/" in route else "")
