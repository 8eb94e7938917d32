"""The gateways, as the dispatcher uses them: open a session, seal it, ask whether they are there.

A session lives at one of them, chosen by its id alone, so that a dispatcher that was restarted finds it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote

from rollway_dispatcher.outbound import Answer, NoAnswer, Outbound
from rollway_wire.codec import MEDIA_TYPE
from rollway_wire.gateway import EngineLoad, PoolLoad, SessionSpec, SessionTicket
from rollway_wire.placement import home_of
from rollway_wire.problems import BadGateway, Unavailable, from_problem

_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECTIONS = 64
_SILENCE_S = 30.0
_SEAL_SILENCE_S = 120.0
"""Sealing waits for the calls in flight to end and cuts the whole session into sequences."""


class GatewayClient:
    """Every method raises `Unavailable` when a gateway cannot be reached or asks to come back later, and the error
    its problem+json stands for otherwise (`NotFound`, `Conflict`, `Unprocessable`, …)."""

    def __init__(self, urls: Sequence[str], api_key: str | None, http: Outbound) -> None:
        """
        Args:
            urls: of the gateways' admin routes, in any order.
            api_key: the admin key, the same at all of them.
        """
        self._urls = tuple(urls)
        self._auth = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = http

    async def check(self) -> None:
        """Raise `Unavailable` unless each gateway answers its health route with 200."""
        await asyncio.gather(*map(self._check, self._urls))

    async def _check(self, url: str) -> None:
        answer = await self._send(url, "GET", "/health", silence_s=5.0)
        if answer.status != 200:
            raise Unavailable(f"the gateway at {url} is not healthy: status {answer.status}")

    async def open_session(self, spec: SessionSpec) -> SessionTicket:
        """Open the session, which must have an id; the same id and settings again give the same ticket."""
        headers = {"content-type": "application/json"}
        assert spec.session_id is not None
        answer = await self._send(
            home_of(spec.session_id, self._urls), "POST", "/v1/sessions", spec.model_dump_json().encode(), headers
        )
        self._raise_for(answer, "opening a session")
        try:
            return SessionTicket.model_validate_json(answer.body)
        except ValueError as e:
            raise BadGateway(f"the gateway's session ticket cannot be read: {e}") from e

    async def seal_session(self, session_id: str) -> bytes:
        """Refuse the session's further calls; its whole trajectory as packed binary."""
        path = f"/v1/sessions/{quote(session_id, safe='')}/seal"
        home = home_of(session_id, self._urls)
        answer = await self._send(home, "POST", path, b"", {"accept": MEDIA_TYPE}, _SEAL_SILENCE_S)
        self._raise_for(answer, "sealing a session")
        if answer.content_type != MEDIA_TYPE:
            raise BadGateway(f"the gateway answered {answer.content_type} where {MEDIA_TYPE} was asked for")
        return answer.body

    async def loads(self, pool: str) -> list[EngineLoad]:
        """What the engines of a pool have to do; empty where the pool is not known. All gateways see the same ones."""
        answer = await self._send(self._urls[0], "GET", f"/v1/pools/{quote(pool, safe='')}/load", silence_s=15.0)
        if answer.status == 404:
            return []
        self._raise_for(answer, "asking how much the engines have to do")
        try:
            return PoolLoad.model_validate_json(answer.body).workers
        except ValueError as e:
            raise BadGateway(f"the gateway's answer on its engines' load cannot be read: {e}") from e

    async def _send(
        self,
        url: str,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        silence_s: float = _SILENCE_S,
    ) -> Answer:
        try:
            return await self._http.call(
                method, url + path, body=body, headers=self._auth | (headers or {}), silence_s=silence_s
            )
        except NoAnswer as e:
            raise Unavailable(f"the gateway at {url} cannot be reached: {e}") from e

    @staticmethod
    def _raise_for(answer: Answer, doing: str) -> None:
        if answer.ok:
            return
        error = from_problem(answer.status, answer.json())
        message = f"{doing}: the gateway answered {answer.status}: {error.detail}"
        if answer.status in _RETRY_STATUSES:
            raise Unavailable(message, retry_after_s=error.retry_after_s)
        raise type(error)(message)


@asynccontextmanager
async def open_gateway(urls: Sequence[str], api_key: str | None) -> AsyncIterator[GatewayClient]:
    """A client with its own connection pool."""
    http = Outbound(max_connections=_CONNECTIONS, keep_alive=True)
    try:
        yield GatewayClient(urls, api_key, http)
    finally:
        await http.close()
