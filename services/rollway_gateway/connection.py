"""One HTTP/1.1 connection to a worker, an answer at a time: what reading an answer costs is most of what a call costs.

llhttp parses, and a read from the socket wakes the call that waits once, with no timer and no buffer between; in the
middle of a stream not even that. Past 300 lines because one answer's life runs through the connection and what
reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

HEAD_BYTES = 64 * 1024
"""Of an answer's head, and of its trailers."""
HIGH_WATER = 1 << 20
"""Bytes of an answer that nobody has read yet; the socket is not read on top of them."""


class AnswerBroken(ConnectionError):
    """The connection ended in the middle of an answer, or what came on it is no HTTP."""


class Silence(TimeoutError):
    """No byte came for the allowed time."""


class Answer:
    """One answer as it comes. Made by `connections.Connections.post`.

    Raises, from `read` and `piece`:
        AnswerBroken: see there.
        Silence: see there.
    """

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: Connection, status: int, headers: dict[str, str]) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers
        """By lower-case name; the last of several."""

    @property
    def content_type(self) -> str:
        """Without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The rest of the body."""
        connection = self._connection
        connection.await_whole()
        while not connection.whole:
            if connection.problem is not None:
                raise connection.told()
            await connection.grown()
        return connection.take()

    def close(self) -> None:
        """Read no more of it."""
        self._connection.close()

    async def piece(self) -> bytes:
        """What came of the body since: as much as one read from the socket brought, or several; empty at the end."""
        connection = self._connection
        while not connection.arrived:
            if connection.whole:
                return b""
            if connection.problem is not None:
                raise connection.told()
            await connection.grown()
        return connection.take()

    async def pump(self, take: Callable[[bytes], bool]) -> None:
        """Give what comes of the body to ``take`` within the read that brings it, which spares waking a task for every
        event of a stream. Ends with the body or its connection, or once ``take`` returns False; `piece` goes on there.

        Raises:
            What ``take`` raises.
        """
        connection = self._connection
        if connection.arrived:
            return
        connection.sink = take
        try:
            while connection.sink is not None and not connection.whole and connection.problem is None:
                await connection.grown()
        finally:
            connection.sink = None
        if (problem := connection.sink_problem) is not None:
            connection.sink_problem = None
            try:
                raise problem
            finally:
                del problem


class Connection(asyncio.Protocol):
    """One connection, an answer at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, inactivity_s: float, drop: Callable[[Connection], None]
    ) -> None:
        self._loop, self._inactivity_s, self._drop = loop, inactivity_s, drop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_at = 0.0
        self._busy = False
        self.problem: Exception | None = None
        self.sink: Callable[[bytes], bool] | None = None
        """What takes the body as it comes; None once it wants no more."""
        self.sink_problem: Exception | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.arrived: list[bytes] = []
        self._unread = self._head_bytes = self.status = 0
        self.headers: dict[str, str] = {}
        self._stays = False
        self.headed = self.whole = self._paused = self._framed = self._awaits_whole = False
        self._between = False
        """The parser stands where a chunk begins: a whole one need not go through it."""

    # -- used by `Connections`

    @property
    def usable(self) -> bool:
        """It stands."""
        return self.problem is None and self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes) -> None:
        """Send a request; its answer is read from then on."""
        assert self._transport is not None
        self._begin()
        self._busy = True
        self._last_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._inactivity_s, self._check)
        self._transport.writelines((head, body))

    async def head(self) -> Answer:
        while not self.headed:
            if self.problem is not None:
                raise self.told()
            await self.grown()
        return Answer(self, self.status, self.headers)

    def rest(self) -> bool:
        """The answer is done with. Whether another may follow on this connection."""
        self._busy = False
        if self.whole and not self.arrived and self.usable and self._stays:
            return True
        self.close()
        return False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    # -- used by `Answer`

    def await_whole(self) -> None:
        """Wake for the end alone."""
        self._awaits_whole = True
        self._resume()

    def take(self) -> bytes:
        arrived, self.arrived, self._unread = self.arrived, [], 0
        if self._paused:
            self._resume()
        return arrived[0] if len(arrived) == 1 else b"".join(arrived)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    async def grown(self) -> None:
        """Until there is more, or no more."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def told(self) -> Exception:
        """The problem, made anew: one that was raised holds the frames it went through, and they hold this."""
        assert self.problem is not None
        return type(self.problem)(*self.problem.args)

    def _fail(self, problem: Exception) -> None:
        if self.problem is None:
            self.problem = problem
        self.close()
        self._wake()

    def _check(self) -> None:
        self._timer = None
        if not self._busy:
            return
        if self._paused:  # the worker waits for us
            self._last_at = self._loop.time()
        left = self._last_at + self._inactivity_s - self._loop.time()
        if left <= 0:
            self._fail(Silence(f"no byte for {self._inactivity_s:g} s"))
        else:
            self._timer = self._loop.call_later(left, self._check)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # of a request that is over: nobody asked for this
            self._fail(AnswerBroken("bytes that belong to no answer"))
            return
        self._last_at = self._loop.time()
        if self._between and self.sink is not None and (piece := _chunk_of(data)) is not None:
            if not self._sunk(self.sink, piece):
                self._wake()
            return
        if not self.headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as e:
            self._fail(AnswerBroken(str(e.__context__ or e)))
            return
        except httptools.HttpParserError as e:
            self._fail(AnswerBroken(f"no HTTP: {e}"))
            return
        if not self.headed and self._head_bytes > HEAD_BYTES:
            self._fail(AnswerBroken(f"a head of over {HEAD_BYTES} bytes"))
            return
        if self.sink is not None:
            if (not self.arrived or self._sunk(self.sink, self.take())) and not self.whole:
                return
        elif self._awaits_whole:
            if not self.whole:
                return
        elif self._unread > HIGH_WATER and not self._paused and not self.whole:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _sunk(self, sink: Callable[[bytes], bool], piece: bytes) -> bool:
        """Whether the sink took what came and wants more."""
        try:
            if sink(piece):
                return True
        except Exception as e:  # noqa: BLE001 - it is raised where the pump is awaited
            self.sink_problem = e
        self.sink = None
        return False

    def eof_received(self) -> None:
        if self.headed and not self.whole and not self._framed:
            self.whole = True  # a body without a length ends with its connection

    def connection_lost(self, exc: Exception | None) -> None:
        if self.problem is None:
            said = f": {exc}" if exc is not None else ""
            where = "in the middle of its answer" if self.headed else "before its answer"
            self.problem = AnswerBroken(f"the connection was closed {where}{said}")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop(self)
        self._wake()
        del self._parser  # which holds this

    # -- httptools

    def on_message_begin(self) -> None:
        if self.whole:
            raise ValueError("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headed:
            return  # a trailer
        lower = name.decode("latin-1").lower()
        if lower == "content-length" or lower == "transfer-encoding":
            self._framed = True
        self.headers[lower] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}
            return
        if self.headers.get("content-encoding", "identity") not in ("", "identity"):
            raise ValueError("an encoded answer, though identity was asked for")
        self.headed = True

    def on_body(self, body: bytes) -> None:
        self.arrived.append(body)
        self._unread += len(body)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        self._between = False
        if self.headed:
            self.whole = True
            self._stays = self._parser.should_keep_alive()


def _chunk_of(data: bytes) -> bytes | None:
    """The content of one chunk that is all of what was read, as a server writes it that sends every event by itself.
    None: it is not so, which is the parser's to say."""
    at = data.find(b"\r\n", 1, 9)
    size = len(data) - at - 4
    if at < 0 or size <= 0 or data[:at] != b"%x" % size or not data.endswith(b"\r\n"):
        return None
    return data[at + 2 : -2]
