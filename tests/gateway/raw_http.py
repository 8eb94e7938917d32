"""Requests as no client library would send them: octets on a socket, and the answer as it came."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from urllib.parse import urlsplit

SILENCE_S = 0.5


@dataclass(frozen=True)
class RawAnswer:
    status: int
    """Of the first answer; 0: the connection was closed without one."""
    text: str
    """Everything that came."""

    @property
    def answers(self) -> int:
        return self.text.count("HTTP/1.1 ")


async def say(url: str, *parts: bytes | float, within_s: float = 20.0) -> RawAnswer:
    """Send the parts in order, a number being a pause in seconds, and read until the server closes, or is silent for
    half a second after an answer to all of them."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    got = bytearray()
    reading = asyncio.create_task(_read_into(got, reader))
    try:
        await _send(writer, parts)
        await _until_over(reading, got, within_s)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return _read(bytes(got))


async def _read_into(got: bytearray, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            got += part


async def _send(writer: asyncio.StreamWriter, parts: tuple[bytes | float, ...]) -> None:
    with contextlib.suppress(ConnectionError):
        for part in parts:
            if isinstance(part, bytes):
                writer.write(part)
                await writer.drain()
            else:
                await asyncio.sleep(part)


async def _until_over(reading: asyncio.Task[None], got: bytearray, within_s: float) -> None:
    waited = 0.0
    while waited < within_s:
        size = len(got)
        done, _ = await asyncio.wait([reading], timeout=SILENCE_S)
        if done or (got and len(got) == size):
            return
        waited += SILENCE_S


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
