"""What uvicorn's HTTP protocol leaves to a proxy in front of it, kept here, because agents reach our ports directly.

A connection has `HEAD_S` seconds to send a request's head, the first as every later one; a head is at most
`HEAD_BYTES` and `HEAD_FIELDS` fields, and trailers and the framing of chunks are bounded likewise. A request that two
servers could read in two ways (a length given twice, or beside chunks) is refused, though the parser would take one of
the readings. An answered request's body that does not end is not read for ever.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

HEAD_S = 20.0
HEAD_BYTES = 64 * 1024
HEAD_FIELDS = 100
LEFTOVER_S = 20.0
"""For the rest of a body whose request has been answered."""
_FRAMING_PER_BYTE = 16
"""Octets that are not body, per octet of body, in the smallest chunks."""
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-api-key"})


class _Refused(Exception):
    pass


class GuardedProtocol(HttpToolsProtocol):
    """See the module; give it to uvicorn as ``http``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: TimerHandle | None = None
        self._reading = False
        """A request has begun and is not read to its end."""
        self._in_head = False
        self._seen: set[bytes] = set()
        self._fields = self._body = self._other = 0
        self._status = 400

    # -- the connection

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        went_on, body_before = self._reading, self._body
        super().data_received(data)
        if went_on and self._reading:
            self._other += len(data) - (self._body - body_before)
            if self._other > HEAD_BYTES + _FRAMING_PER_BYTE * self._body:
                self._status = 431 if self._in_head else 400
                self.send_400_response("Too much around the body." if self._body else "Too large a head.")

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # an answer has begun, or another request's is due: no place for one of ours
            return
        body = msg.encode()
        self.transport.write(
            STATUS_LINE[self._status] + b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n" % len(body)
            + b"connection: close\r\n\r\n" + body
        )  # fmt: skip
        self.transport.close()

    # -- the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = self._in_head = True
        self._seen = set()
        self._fields = self._body = self._other = 0
        if self._timer is None:
            self._within(HEAD_S)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > HEAD_BYTES:
            self._refuse(431)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > HEAD_FIELDS:
            self._refuse(431)
        if not self._in_head:
            return  # a trailer: nobody reads them, and none may pass for a header
        lower = name.lower()
        if lower in _ONCE:
            if lower in self._seen:
                self._refuse(400)
            self._seen.add(lower)
            if lower == b"transfer-encoding" and value.lower().strip() != b"chunked":
                self._refuse(400)
            if self._seen >= {b"content-length", b"transfer-encoding"}:
                self._refuse(400)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        if self.parser.get_http_version() == "1.1" and b"host" not in self._seen:
            self._refuse(400)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._reading and not self._in_head:
            self._within(LEFTOVER_S)

    def _refuse(self, status: int) -> None:
        self._status = status
        raise _Refused  # the parser stops, and reports it as an invalid request

    # -- time

    def _within(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._reading and self._in_head:
            self._status = 408
            self.send_400_response("The request did not arrive in time.")
        self.transport.close()


def piece_writer(send: Any) -> Callable[[bytes], bool] | None:
    """What writes a piece of a response's body as ``send`` would, in chunked framing, but at once: a coroutine for each
    event of a stream costs as much as all else that is done with it. None where uvicorn's own ``send`` is not at hand.

    What is returned takes a piece that is not empty and not the last one. False: it was not written, because the client
    reads too slowly or is gone, or because the response is not in chunks: ``send`` does then what there is to do.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.scope["method"] == "HEAD":
        return None
    transport, flow = cycle.transport, cycle.flow

    def write(body: bytes) -> bool:
        if flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        if cycle.response_complete or not cycle.response_started:
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    return write
