"""The gateway, as the dispatcher uses it: open a session, seal it, ask whether it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx

from rollway_wire.codec import MEDIA_TYPE
from rollway_wire.gateway import SessionSpec, SessionTicket
from rollway_wire.problems import BadGateway, Unavailable, from_problem

_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class GatewayClient:
    """Every method raises `Unavailable` when the gateway cannot be reached or asks to come back later, and the error
    its problem+json stands for otherwise (`NotFound`, `Conflict`, `Unprocessable`, …)."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def check(self) -> None:
        """Raise `Unavailable` unless the gateway answers its health route with 200."""
        answer = await self._send("GET", "/health", timeout=5)
        if answer.status_code != 200:
            raise Unavailable(f"the gateway at {self._http.base_url} is not healthy: status {answer.status_code}")

    async def open_session(self, spec: SessionSpec) -> SessionTicket:
        """Open the session; the same id and settings again give the same ticket."""
        answer = await self._send("POST", "/v1/sessions", json=spec.model_dump(mode="json"))
        self._raise_for(answer, "opening a session")
        try:
            return SessionTicket.model_validate_json(answer.content)
        except ValueError as e:
            raise BadGateway(f"the gateway's session ticket cannot be read: {e}") from e

    async def seal_session(self, session_id: str) -> bytes:
        """Refuse the session's further calls; its whole trajectory as packed binary."""
        answer = await self._send(
            "POST", f"/v1/sessions/{quote(session_id, safe='')}/seal", headers={"accept": MEDIA_TYPE}, timeout=120
        )
        self._raise_for(answer, "sealing a session")
        kind = answer.headers.get("content-type", "").split(";")[0]
        if kind != MEDIA_TYPE:
            raise BadGateway(f"the gateway answered {kind or 'no type'} where {MEDIA_TYPE} was asked for")
        return answer.content

    async def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **kwargs)
        except httpx.HTTPError as e:
            what = f"{type(e).__name__}: {e}".rstrip(": ")
            raise Unavailable(f"the gateway at {self._http.base_url} cannot be reached: {what}") from e

    @staticmethod
    def _raise_for(answer: httpx.Response, doing: str) -> None:
        if answer.is_success:
            return
        try:
            body: Any = answer.json()
        except ValueError:
            body = answer.text
        error = from_problem(answer.status_code, body)
        message = f"{doing}: the gateway answered {answer.status_code}: {error.detail}"
        if answer.status_code in _RETRY_STATUSES:
            raise Unavailable(message, retry_after_s=error.retry_after_s)
        raise type(error)(message)


@asynccontextmanager
async def open_gateway(url: str, api_key: str | None) -> AsyncIterator[GatewayClient]:
    """A client with its own connection pool."""
    # httpcore's pool costs a search through every idle connection per request: keep few.
    limits = httpx.Limits(max_connections=128, max_keepalive_connections=32)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(30, connect=5, pool=60)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=timeout, trust_env=False
    ) as http:
        yield GatewayClient(http)
