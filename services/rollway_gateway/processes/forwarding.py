"""An agent's request that reached a process its session does not live in, passed on to the one it does.

Every process reckons the same home for the same request, so what is passed on is at home where it arrives. Nothing in
the request says that it was passed on: an agent could say it too, and open its session a second time elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import structlog
from starlette.types import Receive, Scope, Send
from yarl import URL

from rollway_gateway import agent_routes
from rollway_gateway.delivery import client_left
from rollway_gateway.gateway import Gateway
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.replies import send_error
from rollway_wire.placement import home_of

log = structlog.get_logger()

_HOP = frozenset({
    b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length",
    b"proxy-authorization", b"proxy-connection", b"expect", b"date",
})  # fmt: skip
"""Of one connection, in either direction."""


class Siblings:
    """The processes of one gateway, as one of them sees them."""

    def __init__(self, urls: Sequence[str], own: int) -> None:
        """
        Args:
            urls: of the agents' listeners, by process.
            own: this process's place among them.
        """
        self._urls = urls
        self._places = [str(k) for k in range(len(urls))]
        self._own = str(own)

    def home(self, gateway: Gateway, named: str | None, scope: Scope) -> str | None:
        """Where the request belongs; None: here, be it only to be refused."""
        try:
            place = home_of(gateway.keys.session_of(named, dict(scope["headers"])), self._places)
        except AgentError:
            return None
        return None if place == self._own else self._urls[int(place)]


async def forward(gateway: Gateway, base: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as the process at ``base`` does, piece by piece. An agent that leaves is gone there too."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    try:
        raw = await agent_routes.read_body(gateway, headers, receive)
    except AgentError as e:
        await send_error(send, e)
        return
    relaying = asyncio.create_task(_relay(gateway.client, base, scope, raw, send))
    watching = asyncio.create_task(client_left(receive))
    try:
        await asyncio.wait({relaying, watching}, return_when=asyncio.FIRST_COMPLETED)
        if relaying.done():
            relaying.result()
    finally:
        for task in (relaying, watching):
            task.cancel()
        await asyncio.gather(relaying, watching, return_exceptions=True)


async def _relay(client: aiohttp.ClientSession, base: str, scope: Scope, raw: bytes, send: Send) -> None:
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    url = URL(base + (scope["raw_path"] + query).decode("latin-1"), encoded=True)
    headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"] if n not in _HOP]
    began = False
    try:
        async with client.request(
            scope["method"], url, data=raw or None, headers=headers, allow_redirects=False
        ) as answer:
            back = [(n.lower(), v) for n, v in answer.raw_headers if n.lower() not in _HOP - {b"content-length"}]
            await send({"type": "http.response.start", "status": answer.status, "headers": back})
            began = True
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
    except (aiohttp.ClientError, TimeoutError, OSError) as e:
        log.warning("passing_on_failed", to=base, why=f"{type(e).__name__}: {e}")
        if began:
            raise  # the server then cuts the connection, as the other process's was
        await send_error(send, AgentError(503, "the session's process is starting again", retry_after_s=1))
