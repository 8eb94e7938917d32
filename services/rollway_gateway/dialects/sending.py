"""The ASGI seam: takes the chat answer that a call sends and sends the dialect's instead.

The engine's refusals (4xx) keep the engine's words and type, as vLLM's own route in that dialect shows them. Failures
(5xx, and a session that is over) are named and numbered as the provider does, so that its SDK tries again rightly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.types import Message, Send

from rollway_gateway.capture.answer import UNKNOWN_FORM
from rollway_gateway.capture.sse import DONE, SseBlocks, data_of
from rollway_gateway.dialects.dialect import Dialect, Encoder, Exchange, Failure
from rollway_gateway.openai_errors import AgentError

_KEPT = (b"retry-after", b"allow", b"x-request-id")
"""Headers of the chat answer that go on."""
UNREADABLE = "the engine's answer cannot be read"


class TranslatedSend:
    """Stands in for ASGI's ``send`` while one call runs."""

    def __init__(
        self, dialect: Dialect, exchange: Exchange, send: Send, request_id: str,
        written: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            written: waits until what the exchange kept is written down; None: it keeps nothing.
        """
        self._dialect = dialect
        self._written = written
        self._exchange = exchange
        self._send = send
        self._request_id = request_id
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._whole: list[bytes] = []
        self._blocks = SseBlocks()
        self._encoder: Encoder | None = None
        """Of an answer that streams."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._encoder is not None:
            more = message.get("more_body", False)
            body = self._events(self._encoder, message.get("body", b""))
            if not more and self._written is not None:
                await self._written()
            if body or not more:
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        else:
            self._whole.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._finish(b"".join(self._whole))

    async def _start(self, message: Message) -> None:
        headers = dict(message["headers"])
        self._status = message["status"]
        self._headers = [(name, headers[name]) for name in _KEPT if name in headers]
        if self._status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._encoder = self._exchange.stream()
            head = [(b"content-type", b"text/event-stream; charset=utf-8"), *self._own_headers()]
            await self._send({"type": "http.response.start", "status": 200, "headers": head})

    async def _finish(self, body: bytes) -> None:
        if self._status != 200:
            await self._refuse(failure_of(body, self._status))
            return
        try:
            said = self._exchange.answer(orjson.loads(body))
        except UNKNOWN_FORM as e:
            await self._refuse(Failure(502, f"{UNREADABLE}: {type(e).__name__}: {e}"))
            return
        if self._written is not None:
            await self._written()
        await _send_json(self._send, 200, self._own_headers(), said)

    async def _refuse(self, failure: Failure) -> None:
        status, said = self._dialect.refuse(failure)
        await _send_json(self._send, status, self._own_headers(), said)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        own = (self._dialect.request_id_header, self._request_id.encode())
        return [*(h for h in self._headers if h[0] != own[0]), own]

    def _events(self, encoder: Encoder, data: bytes) -> bytes:
        return b"".join(self._event(encoder, block) for block in self._blocks.feed(data))

    @staticmethod
    def _event(encoder: Encoder, block: bytes) -> bytes:
        data = data_of(block)
        if data is None:
            return encoder.keep_alive()
        if data == DONE:
            return encoder.end()
        try:
            chunk = orjson.loads(data)
            if "error" in chunk:
                return encoder.fail(failure_of(data, 500))
            return encoder.feed(chunk)
        except UNKNOWN_FORM as e:
            return encoder.fail(Failure(502, f"{UNREADABLE}: {type(e).__name__}: {e}"))


def failure_of(body: bytes, status: int) -> Failure:
    """The failure that an OpenAI error body tells; the text itself where it is none."""
    try:
        error = orjson.loads(body)["error"]
        message, kind, param = str(error["message"]), error.get("type"), error.get("param")
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else status
    except UNKNOWN_FORM:
        message, kind, param = body.decode(errors="replace") or f"status {status}", None, None
    if status >= 500 or status == 410:
        kind = None
    return Failure(status, message, kind, param)


async def send_refusal(send: Send, dialect: Dialect, error: AgentError, request_id: str) -> None:
    """Answer with the gateway's own error, in the dialect."""
    status, said = dialect.refuse(Failure(error.status, error.message, None, error.param))
    headers = [h for h in error.headers() if h[0] != b"content-type"]
    await _send_json(send, status, [*headers, (dialect.request_id_header, request_id.encode())], said)


async def _send_json(send: Send, status: int, headers: list[tuple[bytes, bytes]], said: dict[str, Any]) -> None:
    body = orjson.dumps(said)
    length = (b"content-length", str(len(body)).encode())
    head = [(b"content-type", b"application/json"), *headers, length]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
