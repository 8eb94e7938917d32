"""Requests as no client library would send them: octets on a socket, and the answer as it came."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

CLOSES_WITHIN_S = 60.0


@dataclass(frozen=True)
class RawAnswer:
    status: int
    """Of the first answer; 0: the connection was closed without one."""
    text: str
    """Everything that came."""

    @property
    def answers(self) -> int:
        return self.text.count("HTTP/1.1 ")


async def say(url: str, *parts: bytes | float) -> RawAnswer:
    """Send the parts in order, a number being a pause in seconds, and read until the server closes.

    Raises:
        TimeoutError: it does not.
    """
    async with _connected(url) as (writer, reading):
        for part in parts:
            if isinstance(part, bytes):
                await _send(writer, part)
            else:
                await asyncio.sleep(part)
        return await _whole(reading)


async def trickle(url: str, begin: bytes, more: bytes, *, every_s: float = 0.1) -> RawAnswer:
    """Send ``begin``, and then ``more`` again and again for as long as the server does not close.

    Raises:
        TimeoutError: it does not.
    """
    async with _connected(url) as (writer, reading), asyncio.timeout(CLOSES_WITHIN_S):
        await _send(writer, begin)
        while not reading.done():
            await _send(writer, more)
            await asyncio.wait([reading], timeout=every_s)
        return await _whole(reading)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.Task[bytes]]]:
    """What sends, and what reads to the end."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    reading = asyncio.create_task(_read_all(reader))
    try:
        yield writer, reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            got += part
    return bytes(got)


async def _send(writer: asyncio.StreamWriter, part: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(part)
        await writer.drain()


async def _whole(reading: asyncio.Task[bytes]) -> RawAnswer:
    async with asyncio.timeout(CLOSES_WITHIN_S):
        return _read(await reading)


def _read(raw: bytes) -> RawAnswer:
    text = raw.decode("latin-1")
    return RawAnswer(int(text.split(" ", 2)[1]) if text.startswith("HTTP/1.1 ") else 0, text)


def post(path: str, body: bytes, *headers: str, last: bool = True) -> bytes:
    """A whole request with its length."""
    return head("POST", path, f"content-length: {len(body)}", *headers, last=last) + body


def head(method: str, path: str, *headers: str, last: bool = True) -> bytes:
    """A request's head, as given: nothing is checked, nothing is added but Host and, on the ``last`` of a connection,
    that it is."""
    close = ["connection: close"] if last else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *close, *headers, "", ""]).encode("latin-1")
