"""Answers that are sent whole, and the worker's headers that go with them."""

from __future__ import annotations

import aiohttp
from starlette.types import Send

from rollway_gateway.openai_errors import AgentError

_BACK = ("content-type", "retry-after", "x-request-id")
"""Headers of the worker's answer that the agent gets."""


def headers_back(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), response.headers[name].encode()) for name in _BACK if name in response.headers]


async def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: AgentError) -> None:
    await send_whole(send, error.status, error.headers(), error.body())
