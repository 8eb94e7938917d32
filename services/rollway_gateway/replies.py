"""Answers that are sent whole, and the worker's headers that go with them."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Send

from rollway_gateway.connection import Answer
from rollway_gateway.openai_errors import AgentError

_BACK = ("content-type", "retry-after", "x-request-id")
"""Headers of the worker's answer that the agent gets."""


STREAMS = {"content-type": "text/event-stream; charset=utf-8"}
"""What says that an answer streams."""


def headers_back(response: Answer, instead: Mapping[str, str] | None = None) -> list[tuple[bytes, bytes]]:
    """
    Args:
        instead: take the place of the worker's own.
    """
    own = {name: response.headers[name] for name in _BACK if name in response.headers}
    return [(name.encode(), value.encode()) for name, value in {**own, **(instead or {})}.items()]


async def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: AgentError) -> None:
    await send_whole(send, error.status, error.headers(), error.body())
