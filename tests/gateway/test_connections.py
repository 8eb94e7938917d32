"""`Connections` against servers that answer byte by byte as a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollway_gateway.connection import HIGH_WATER, AnswerBroken, Silence
from rollway_gateway.connections import CannotConnect, Connections
from tests.kit.certificates import self_signed
from tests.kit.clock import put_forward
from tests.kit.deadlines import eventually
from tests.kit.ports import hold

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Reads requests and lets ``serve`` answer each; counts connections."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = 0
        """Connections that their client closed."""
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left += 1
        finally:
            writer.close()


@asynccontextmanager
async def serving(serve: Serve | bytes, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    async def always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(serve, bytes)
        writer.write(serve)
        await writer.drain()

    server = Server(always if isinstance(serve, bytes) else serve)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=context)
    server.url = f"http{'s' if context else ''}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/x?a=b"
    try:
        yield server
    finally:
        listening.close()


async def itself(host: str) -> list[str]:
    return [host]


@asynccontextmanager
async def client(*, inactivity_s: float = 30.0, keepalive_s: float = 30.0) -> AsyncIterator[Connections]:
    connections = Connections(connect_s=10, inactivity_s=inactivity_s, keepalive_s=keepalive_s, resolve=itself)
    try:
        yield connections
    finally:
        connections.close()


async def asked(connections: Connections, url: str) -> tuple[int, bytes]:
    async with connections.post(url, b"{}", {"content-type": "application/json"}) as answer:
        return answer.status, await answer.read()


FORMS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nx-t: 1\r\n\r\n",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("form", FORMS)
async def test_answers_are_read_and_their_connection_is_kept(form: str) -> None:
    async with serving(FORMS[form]) as server, client() as connections:
        assert [await asked(connections, server.url) for _ in range(3)] == [(200, b"hello")] * 3
        assert server.connections == 1
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/x?a=b HTTP/1.1\r\nhost: 127.0.0.1:") and body == b"{}"
        assert b"\r\naccept-encoding: identity\r\n" in head


@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_may_come_a_byte_at_a_time(form: str) -> None:
    async def slowly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for at in range(len(FORMS[form])):
            writer.write(FORMS[form][at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async with serving(slowly) as server, client() as connections:
        async with connections.post(server.url, b"{}", {}) as answer:
            pieces = []
            while piece := await answer.piece():
                pieces.append(piece)
        assert b"".join(pieces) == b"hello"
        assert await asked(connections, server.url) == (200, b"hello")


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async def until_closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with serving(until_closed) as server, client() as connections:
        assert [await asked(connections, server.url) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(FORMS["length"])
        await writer.drain()
        writer.close()

    async with serving(once) as server, client() as connections:
        assert await asked(connections, server.url) == (200, b"hello")
        await eventually(lambda: not connections._open, "the end of the connection is noticed")
        assert await asked(connections, server.url) == (200, b"hello")


async def test_a_connection_that_nothing_uses_is_closed() -> None:
    async with serving(FORMS["length"]) as server, client(keepalive_s=0.05) as connections:
        await asked(connections, server.url)
        await eventually(lambda: server.left == 1, "the idle connection is closed")
        assert not connections._open and not connections._idle


async def test_connection_close_is_obeyed() -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    async with serving(answer) as server, client() as connections:
        assert [await asked(connections, server.url) for _ in range(2)] == [(200, b"")] * 2
        assert server.connections == 2


@pytest.mark.parametrize("how", ["leaves", "fails", "is cancelled"])
async def test_leaving_early_closes_the_connection(how: str) -> None:
    async def begin(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n")
        await writer.drain()

    async with serving(begin) as server, client() as connections:

        async def ask() -> None:
            async with connections.post(server.url, b"{}", {}) as answer:
                assert await answer.piece() == b"he"
                if how == "fails":
                    raise KeyError
                if how == "is cancelled":
                    await answer.piece()

        task = asyncio.create_task(ask())
        if how == "is cancelled":
            await eventually(lambda: bool(server.requests), "asked")
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: server.left == 1, "the server sees the end")
        assert not connections._idle


BROKEN = {
    "no HTTP": b"hello\r\n\r\n",
    "encoded": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx",
    "a bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_no_answer_is_refused_and_its_connection_closed(what: str) -> None:
    async with serving(BROKEN[what]) as server, client() as connections:
        with pytest.raises(AnswerBroken):
            await asked(connections, server.url)
        assert not connections._idle


async def test_what_comes_on_top_of_an_answer_answers_nothing() -> None:
    async with (
        serving(FORMS["length"] + FORMS["length"].replace(b"hello", b"other")) as server,
        client() as connections,
    ):
        assert [await asked(connections, server.url) for _ in range(3)] == [(200, b"hello")] * 3
        assert server.connections == 3


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-le", FORMS["length"][:-1], FORMS["chunks"][:-30]])
async def test_a_connection_that_ends_in_the_middle_is_no_answer(sent: bytes) -> None:
    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with serving(cut) as server, client() as connections:
        with pytest.raises(AnswerBroken, match="closed"):
            await asked(connections, server.url)


async def test_silence_is_told_from_a_lost_connection() -> None:
    async def nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(nothing) as server, client(inactivity_s=0.2) as connections:
        with pytest.raises(Silence):
            await asked(connections, server.url)
        await eventually(lambda: not connections._open, "closed")


async def test_a_slow_stream_is_not_silent() -> None:
    """However long all of it takes."""
    go_on = asyncio.Semaphore(0)

    async def drips(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n")
        for _k in range(8):
            await go_on.acquire()
            writer.write(b"x")

    async with (
        serving(drips) as server,
        client(inactivity_s=60) as connections,
        connections.post(server.url, b"{}", {}) as answer,
    ):
        for _k in range(8):
            put_forward(40)
            for _tick in range(3):  # what is due comes before the next byte
                await asyncio.sleep(0)
            go_on.release()
            assert await answer.piece() == b"x"
        assert await answer.piece() == b""


async def test_nobody_there() -> None:
    with hold() as port, pytest.raises(CannotConnect, match=r"127\.0\.0\.1"):
        async with client() as connections:
            await asked(connections, f"http://127.0.0.1:{port.getsockname()[1]}/v1/x")


async def test_what_nobody_reads_is_not_taken_in() -> None:
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * HIGH_WATER))
        for _k in range(256):
            writer.write(b"x" * (HIGH_WATER // 4))
            await writer.drain()
            sent += HIGH_WATER // 4

    async with serving(flood) as server, client() as connections:
        async with connections.post(server.url, b"{}", {}) as answer:
            held: list[int] = []
            while len(held) < 20 or held[-1] != held[-20]:
                await asyncio.sleep(0.01)
                held.append(sent)
            assert held[-1] < 48 * HIGH_WATER  # what is not read waits in socket buffers and at the server
            size = 0
            while piece := await answer.piece():
                size += len(piece)
        assert size == 64 * HIGH_WATER


async def test_a_header_cannot_end_its_line() -> None:
    async with serving(FORMS["length"]) as server, client() as connections:
        with pytest.raises(ValueError, match="line break"):
            async with connections.post(server.url, b"{}", {"x-request-id": "a\r\nx-admin: 1"}):
                pass
        assert not server.requests


async def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with serving(FORMS["length"], context) as server:
        async with client() as connections:
            with pytest.raises(CannotConnect, match="certificate"):
                await asked(connections, server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with client() as connections:
            assert await asked(connections, server.url) == (200, b"hello")
