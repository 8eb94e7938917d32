"""HTTP calls to the gateway and to agents: aiohttp, whole answers, one error for everything that is no answer.

Not httpx: its connection pool searches every connection for every request, which at 1,600 rollouts kept the loop from
doing anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


class NoAnswer(Exception):
    """The connection was refused or lost, or nothing came in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON; its text where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return self.text


class Outbound:
    """One connection pool. Close it."""

    def __init__(self, *, max_connections: int, keep_alive: bool, connect_s: float = 5.0) -> None:
        """Without ``keep_alive`` no connection is used twice: a peer that may vanish leaves no dead one behind."""
        self._connect_s = connect_s
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_connections, force_close=not keep_alive),
            auto_decompress=True,
            trust_env=False,
        )

    async def call(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float,
    ) -> Answer:
        """Send and read the whole answer, redirects not followed. Waiting for a free connection is not limited.

        Raises:
            NoAnswer: not connected in time, connection lost, or ``silence_s`` seconds without a byte of an answer.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=silence_s)
        try:
            async with self._http.request(
                method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                return Answer(answer.status, answer.content_type, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise NoAnswer(f"{type(e).__name__}: {e}".rstrip(": ")) from e

    async def close(self) -> None:
        await self._http.close()
