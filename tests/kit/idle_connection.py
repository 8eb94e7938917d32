"""A connection that is kept alive between requests: a server that begins to stop closes it, and keeps the busy ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


@asynccontextmanager
async def idle_connection(url: str, path: str = "/health") -> AsyncIterator[asyncio.Event]:
    """After one answered GET; the event is set once the server has closed it."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    closed = asyncio.Event()

    async def watch() -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        closed.set()

    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {where.netloc}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0] and b"connection: close" not in head.lower(), head
        watching = asyncio.create_task(watch())
        try:
            yield closed
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
