"""HTTP to a container: GET /ping and POST /invocations on 127.0.0.1, the AgentCore HTTP contract."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum

import aiohttp


class Ping(StrEnum):
    HEALTHY = "Healthy"
    BUSY = "HealthyBusy"
    UNREACHABLE = "unreachable"
    """No answer, not 200, or not what the contract says."""


class ContainerLink:
    """Calls containers. One HTTP client for all of them."""

    def __init__(self, http: aiohttp.ClientSession, *, ping_timeout_s: float) -> None:
        self._http = http
        self._ping_timeout = aiohttp.ClientTimeout(total=ping_timeout_s)

    async def ping(self, port: int) -> Ping:
        try:
            async with self._http.get(f"http://127.0.0.1:{port}/ping", timeout=self._ping_timeout) as answer:
                if answer.status != 200:
                    return Ping.UNREACHABLE
                body = await answer.json(content_type=None)
                return Ping(body["status"])
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            return Ping.UNREACHABLE

    async def invoke(
        self, port: int, headers: Mapping[str, str], payload: bytes, *, timeout_s: float
    ) -> aiohttp.ClientResponse:
        """The answer, its body still to come; the caller closes it.

        Raises:
            aiohttp.ClientError: refused, reset, or not HTTP.
            TimeoutError: no answer began within ``timeout_s``.
        """
        async with asyncio.timeout(timeout_s):
            # A file, because aiohttp writes bytes in one piece, which holds the loop for a large payload.
            body = io.BytesIO(payload)
            return await self._http.post(f"http://127.0.0.1:{port}/invocations", data=body, headers=headers)


@asynccontextmanager
async def open_container_link(*, ping_timeout_s: float) -> AsyncIterator[ContainerLink]:
    # A fresh connection per call: a kept one may be closed by the container just as it is used again, which would
    # read as a container's failure. Unbounded, because every session is its own host.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, trust_env=False,
        skip_auto_headers=("Accept-Encoding",),  # bytes pass through as the agent wrote them
        max_line_size=16_384, max_field_size=16_384,
    ) as http:  # fmt: skip
        yield ContainerLink(http, ping_timeout_s=ping_timeout_s)
