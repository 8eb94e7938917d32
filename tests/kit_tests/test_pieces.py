"""`piece_writer`: pieces of a response's body written without a coroutine, as uvicorn's own ``send`` writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from rollway_kit.http_guard import GuardedProtocol, piece_writer
from rollway_kit.serve import bind
from tests.kit.deadlines import eventually

HEAD: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
END: dict[str, Any] = {"type": "http.response.body", "body": b""}
Answer = Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def _asked(
    answer: Answer, method: bytes = b"GET"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    with bind("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(app, http=GuardedProtocol, lifespan="off", log_config=None))
        running = asyncio.create_task(server._serve([sock]))
        await eventually(lambda: server.started, "the server to start")
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        try:
            writer.write(method + b" / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await running


async def _body(reader: asyncio.StreamReader) -> bytes:
    return (await asyncio.wait_for(reader.read(-1), 60)).partition(b"\r\n\r\n")[2]


async def test_pieces_are_chunks_between_those_that_are_sent() -> None:
    wrote: list[bool] = []

    async def answer(send: Any) -> None:
        write = piece_writer(send)
        assert write is not None
        wrote.append(write(b"too early"))
        await send(HEAD)
        wrote.extend(map(write, [b"one", b"two\r\n"]))
        await send({"type": "http.response.body", "body": b"three", "more_body": True})
        wrote.append(write(b"f" * 300))
        await send(END)
        wrote.append(write(b"too late"))

    async with _asked(answer) as (reader, _):
        assert await _body(reader) == (
            b"3\r\none\r\n5\r\ntwo\r\n\r\n5\r\nthree\r\n12c\r\n" + b"f" * 300 + b"\r\n0\r\n\r\n"
        )
    assert wrote == [False, True, True, True, False]


async def test_a_client_that_reads_slowly_is_not_written_to_without_end() -> None:
    """What was refused is sent, which waits for the client: nothing is lost or overtaken."""
    written: list[int] = []

    async def answer(send: Any) -> None:
        write = piece_writer(send)
        assert write is not None
        await send(HEAD)
        piece = b"x" * 65536
        while write(piece):
            written.append(len(piece))
            assert len(written) < 10_000
        await send({"type": "http.response.body", "body": b"last", "more_body": False})

    async with _asked(answer) as (reader, _):
        await eventually(lambda: written, "pieces are written")
        await asyncio.sleep(0.1)
        count = len(written)
        body = await _body(reader)
    assert count == len(written) and body.endswith(b"4\r\nlast\r\n0\r\n\r\n")
    assert body.count(b"x") == sum(written)


async def test_nothing_is_written_to_one_that_left() -> None:
    left: list[bool] = []

    async def answer(send: Any) -> None:
        write = piece_writer(send)
        assert write is not None
        await send(HEAD)
        assert write(b"x")
        await eventually(lambda: send.__self__.disconnected, "the client is gone")
        left.append(write(b"y"))

    async with _asked(answer) as (reader, writer):
        await reader.readuntil(b"x")
        writer.transport.abort()
        await eventually(lambda: left, "it is noticed")
    assert left == [False]


@pytest.mark.parametrize(
    ("method", "head"), [(b"HEAD", HEAD), (b"GET", HEAD | {"headers": [(b"content-length", b"1")]})]
)
async def test_a_response_without_chunks_is_left_to_send(method: bytes, head: dict[str, Any]) -> None:
    wrote: list[bool] = []

    async def answer(send: Any) -> None:
        write = piece_writer(send)
        await send(head)
        wrote.append(write is not None and write(b"x"))
        await send({"type": "http.response.body", "body": b"x"})

    async with _asked(answer, method) as (reader, _):
        assert await _body(reader) == (b"" if method == b"HEAD" else b"x")
    assert wrote == [False]


def test_what_is_not_uvicorns_own_has_none() -> None:
    async def send(message: Any) -> None: ...

    assert piece_writer(send) is None
