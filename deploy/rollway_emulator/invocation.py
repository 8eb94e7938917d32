"""One InvokeAgentRuntime from admission to the last byte, and what the caller is sent of it.

An answer with a Content-Length is read whole first, so a container that dies inside it is a RuntimeClientError. An
answer without one is a stream: its bytes pass in real time, and when the container dies the connection is cut short of
its end, which the SDK reports as a broken stream. A caller that leaves cancels the call to the container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack, suppress

import aiohttp
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollway_emulator.chaos import Chaos
from rollway_emulator.container_link import ContainerLink
from rollway_emulator.errors import RuntimeClientError
from rollway_emulator.session import Session
from rollway_emulator.validation import SESSION_HEADER, TRACE_HEADER, InvokeCall

log = structlog.get_logger()

_PASSED_BACK = ("content-type", "mcp-session-id", "mcp-protocol-version", "traceparent", "tracestate", "baggage")
_SHOWN_BYTES = 500
_EXIT_NOTICED_S = 0.5


class CallerLeft(Exception):
    """The caller closed the connection before the answer began."""


class Invocation:
    """One call of one session. Use `answer` once."""

    def __init__(
        self, session: Session, chaos: Chaos, link: ContainerLink, *,
        request_timeout_s: float, stream_timeout_s: float, answer_limit_bytes: int,
    ) -> None:  # fmt: skip
        self._session = session
        self._chaos = chaos
        self._link = link
        self._request_timeout_s = request_timeout_s
        self._stream_timeout_s = stream_timeout_s
        self._answer_limit = answer_limit_bytes

    async def answer(self, request: Request, call: InvokeCall, payload: bytes) -> Response:
        """Raises:
        RuntimeClientError: the container did not start, answered non-2xx, died, or kept silent too long.
        CallerLeft: there is nobody to answer.
        """
        with ExitStack() as held:
            held.enter_context(self._session.call())
            work = asyncio.ensure_future(self._call_container(call, payload))
            gone = asyncio.ensure_future(_caller_gone(request.receive))
            try:
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise CallerLeft
            finally:
                gone.cancel()
                work.cancel()
                await asyncio.gather(work, gone, return_exceptions=True)
            answer = work.result()
            headers = self._headers(answer, call)
            if answer.content_length is not None:
                with held.pop_all():
                    return Response(await self._whole(answer), answer.status, headers)
            return StreamedAnswer(answer, headers, held.pop_all(), self._session, self._stream_timeout_s)

    async def _call_container(self, call: InvokeCall, payload: bytes) -> aiohttp.ClientResponse:
        port = await self._session.ready()
        try:
            if self._chaos.never_answers():
                async with asyncio.timeout(self._request_timeout_s):
                    await self._session.ended()
                raise RuntimeClientError(self._session.epitaph())
            answer = await self._link.invoke(port, call.forwarded, payload, timeout_s=self._request_timeout_s)
        except TimeoutError as e:
            waited = f"no answer began within {self._request_timeout_s:g} s"
            raise RuntimeClientError(f"{waited}; the container's log: {self._session.log_path}") from e
        except aiohttp.ClientError as e:
            raise await self._lost(e) from e
        if not 200 <= answer.status < 300:
            async with answer:
                shown = await self._first_bytes(answer)
            raise RuntimeClientError(
                f"Received error ({answer.status}) from runtime: {shown} (log: {self._session.log_path})"
            )
        return answer

    async def _lost(self, error: Exception) -> RuntimeClientError:
        # The connection breaks a moment before the exit is noticed; the exit is the better explanation.
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_NOTICED_S):
                await self._session.over()
        return RuntimeClientError(f"{type(error).__name__} while answering; {self._session.epitaph()}")

    async def _first_bytes(self, answer: aiohttp.ClientResponse) -> str:
        try:
            return (await answer.content.read(_SHOWN_BYTES)).decode(errors="replace")
        except aiohttp.ClientError as e:
            return f"<body lost: {type(e).__name__}>"

    async def _whole(self, answer: aiohttp.ClientResponse) -> bytes:
        if (answer.content_length or 0) > self._answer_limit:
            answer.close()
            raise RuntimeClientError(f"the answer has over {self._answer_limit} bytes")
        try:
            async with answer, asyncio.timeout(self._stream_timeout_s):
                return await answer.read()
        except TimeoutError as e:
            raise RuntimeClientError(f"the answer did not end within {self._stream_timeout_s:g} s") from e
        except aiohttp.ClientError as e:
            raise await self._lost(e) from e

    def _headers(self, answer: aiohttp.ClientResponse, call: InvokeCall) -> dict[str, str]:
        given: Mapping[str, str] = answer.headers
        headers = {name: given[name] for name in _PASSED_BACK if name in given}
        headers.setdefault("content-type", "application/octet-stream")
        headers[SESSION_HEADER] = call.session_id
        if TRACE_HEADER in call.forwarded:
            headers[TRACE_HEADER] = call.forwarded[TRACE_HEADER]
        return headers


class StreamedAnswer(Response):
    """Passes a container's stream on as it comes; holds the session's call until it ends."""

    def __init__(
        self, answer: aiohttp.ClientResponse, headers: Mapping[str, str], held: ExitStack, session: Session,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self.status_code = answer.status
        self.background = None
        self.body = b""
        self.init_headers(headers)
        self.raw_headers = [(k, v) for k, v in self.raw_headers if k != b"content-length"]
        self._answer = answer
        self._held = held
        self._session = session
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            async with self._answer:
                passing = asyncio.ensure_future(self._pass(send))
                gone = asyncio.ensure_future(_caller_gone(receive))
                try:
                    await asyncio.wait({passing, gone}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    passing.cancel()
                    gone.cancel()
                    await asyncio.gather(passing, gone, return_exceptions=True)
                if not passing.cancelled():
                    passing.result()

    async def _pass(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in self._answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except (aiohttp.ClientError, TimeoutError) as e:
            # Returning without the last body message makes the server cut the connection: the truth about the stream.
            log.warning("stream_broken", session_id=self._session.session_id, error=repr(e))
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _caller_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
