"""Connections to workers for model calls, kept alive between them.

TLS, name resolution and sockets are the event loop's. Other requests to workers, which are few, go by aiohttp.

    post ──► pool ──► head ──► piece ──► whole ──► pool          kept alive
              └─ connect        └─ left early ──► closed          the engine aborts the generation
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import urlsplit

from rollway_gateway.connection import Answer, Connection

Origin = tuple[bool, str, int]
"""TLS, host, port."""


class CannotConnect(ConnectionError):
    """No connection could be made."""


@lru_cache(maxsize=1024)
def _target(url: str) -> tuple[Origin, bytes]:
    """Origin and the request's head up to its own headers."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host = parts.hostname or ""
    origin = (tls, host, parts.port or (443 if tls else 80))
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    head = f"POST {path}{query} HTTP/1.1\r\nhost: {parts.netloc}\r\naccept: */*\r\naccept-encoding: identity\r\n"
    return origin, head.encode("ascii")


class Connections:
    """The connections of one process, kept alive between calls. No limit on their number: calls in flight are the
    limit. Redirects are answers like others, and the machine's proxy settings are not read."""

    def __init__(
        self, *, connect_s: float, inactivity_s: float, keepalive_s: float,
        resolve: Callable[[str], Awaitable[list[str]]],
    ) -> None:  # fmt: skip
        """
        Args:
            connect_s: for name resolution, connection and TLS together.
            inactivity_s: between two reads of an answer, and before its first.
            keepalive_s: of a connection that nothing uses.
            resolve: the addresses that a host's name stands for; OSError where none may be used.
        """
        self._connect_s, self._inactivity_s, self._keepalive_s = connect_s, inactivity_s, keepalive_s
        self._resolve = resolve
        self._idle: dict[Origin, deque[tuple[Connection, float]]] = {}
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
        """POST; leaving before the answer's end closes the connection.

        Raises:
            CannotConnect: also when it takes too long.
            AnswerBroken, Silence: also from what reads the answer.
            ValueError: a header that would end its line.
        """
        origin, start = _target(url)
        lines = [start]
        for name, value in headers.items():
            if "\r" in value or "\n" in value:
                raise ValueError(f"header {name} holds a line break")
            lines.append(f"{name}: {value}\r\n".encode("latin-1"))
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        connection = self._kept(origin) or await self._connected(origin)
        whole = False
        try:
            connection.ask(b"".join(lines), body)
            yield await connection.head()
            whole = True
        finally:
            if not whole:
                connection.close()
            elif connection.rest():
                self._keep(origin, connection)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.close()

    def _kept(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection, until = idle.pop()  # the last used: the others may grow old
            if connection.usable and until > asyncio.get_running_loop().time():
                return connection
            connection.close()
        return None

    def _keep(self, origin: Origin, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, deque()).append((connection, loop.time() + self._keepalive_s))
        if self._sweep is None:
            self._sweep = loop.call_later(self._keepalive_s, self._close_old)

    def _close_old(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        for origin, idle in list(self._idle.items()):
            while idle and (idle[0][1] <= loop.time() or not idle[0][0].usable):
                idle.popleft()[0].close()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweep = loop.call_later(self._keepalive_s, self._close_old)

    async def _connected(self, origin: Origin) -> Connection:
        tls, host, port = origin
        try:
            async with asyncio.timeout(self._connect_s):
                problem: OSError | None = None
                for address in await self._resolve(host):
                    try:
                        return await self._connect(address, port, host if tls else None)
                    except OSError as e:  # ssl.SSLError is one
                        problem = e
        except TimeoutError:
            raise CannotConnect(f"{host}:{port} took over {self._connect_s:g} s") from None
        except OSError as e:
            problem = e
        raise CannotConnect(f"{host}:{port}: {problem}") from problem

    async def _connect(self, address: str, port: int, server_name: str | None) -> Connection:
        loop = asyncio.get_running_loop()
        if server_name is not None and self._tls is None:
            self._tls = ssl.create_default_context()
        _, connection = await loop.create_connection(
            lambda: Connection(loop, self._inactivity_s, self._open.discard), address, port,
            ssl=self._tls if server_name is not None else None, server_hostname=server_name,
        )  # fmt: skip
        self._open.add(connection)
        return connection
