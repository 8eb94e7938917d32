"""The FastAPI app every control plane starts from: problems rendered, bodies bounded, one log line per request."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollway_kit.keys import scrub
from rollway_wire.problems import RequestTimeout, RollwayError, TooLarge, Unprocessable

log = structlog.get_logger()

PROBLEM_MEDIA_TYPE = "application/problem+json"
BODY_TIMEOUT_S = 60.0
BODY_BYTES_PER_S = 16 * 1024
"""A body has its time-out and one second more for so many bytes of it: a slower one is refused in the end."""


def problem_response(error: RollwayError, instance: str | None = None) -> JSONResponse:
    """RFC 9457 answer, with Retry-After where the error says when to come back."""
    headers = {} if error.retry_after_s is None else {"retry-after": str(max(1, round(error.retry_after_s)))}
    body = error.problem(None if instance is None else scrub(instance))
    body["detail"] = scrub(error.detail)
    return JSONResponse(body, error.status, headers, media_type=PROBLEM_MEDIA_TYPE)


async def _on_rollway_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RollwayError)
    return problem_response(exc, request.url.path)


async def _on_invalid(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    errors = [{"where": "/".join(map(str, e["loc"])), "message": e["msg"]} for e in exc.errors()[:20]]
    first = f"{errors[0]['where']}: {errors[0]['message']}" if errors else "invalid request"
    return problem_response(Unprocessable(first, errors=errors), request.url.path)


async def _on_http(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, HTTPException)
    error = RollwayError(str(exc.detail))
    error.status, error.code = exc.status_code, HTTPStatus(exc.status_code).phrase.lower().replace(" ", "_")
    response = problem_response(error, request.url.path)
    response.headers.update(exc.headers or {})
    return response


async def _on_bug(request: Request, exc: Exception) -> JSONResponse:
    log.error("unhandled_exception", path=request.url.path, exc_info=exc)
    return problem_response(RollwayError(f"{type(exc).__name__}: see the service's log"), request.url.path)


class BodyLimit:
    """ASGI middleware: a request body over ``limit`` bytes is refused with 413, by its header or while it arrives; one
    that is not whole in time (`BODY_BYTES_PER_S`) with 408.

    FastAPI answers 400 to whatever goes wrong while it reads a body, so the app's own answer is replaced.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self.app = app
        self.limit, self.timeout_s = limit, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        too_large = TooLarge(f"request body is over {self.limit} bytes")
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.limit:
            await problem_response(too_large, scope["path"])(scope, receive, send)
            return
        due = asyncio.get_running_loop().time() + self.timeout_s
        seen, more, answering = 0, True, False
        refused: RollwayError | None = None

        async def bounded() -> Message:
            nonlocal seen, more, refused
            try:
                async with asyncio.timeout_at(due + seen / BODY_BYTES_PER_S if more else None):
                    message = await receive()
            except TimeoutError:
                refused = RequestTimeout(f"request body was not whole in time: {self.timeout_s:g} s and more")
                raise refused from None
            seen += len(message.get("body", b""))
            more = message.get("more_body", False)
            if seen > self.limit:
                refused = too_large
                raise refused
            return message

        async def guarded(message: Message) -> None:
            nonlocal answering
            if refused is None or answering:
                answering = True
                await send(message)

        try:
            await self.app(scope, bounded, guarded)
        except RollwayError as e:
            if e is not refused:
                raise
        if refused is not None and not answering:
            await problem_response(refused, scope["path"])(scope, receive, send)


class CanonicalLine:
    """ASGI middleware: one log line per request, when its answer has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500  # an exception leaves before any answer begins; the answer to it is made outside

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            ms = round((time.perf_counter() - begin) * 1e3, 2)
            log.info("request", method=scope["method"], path=scope["path"], status=status, ms=ms)


def create_app(
    title: str, *, lifespan: Any, max_body_bytes: int, body_timeout_s: float = BODY_TIMEOUT_S, **kwargs: Any
) -> FastAPI:
    """A FastAPI app with problem+json everywhere, bodies bounded in size and time, and canonical log lines."""
    app = FastAPI(title=title, lifespan=lifespan, **kwargs)
    app.add_exception_handler(RollwayError, _on_rollway_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(BodyLimit, limit=max_body_bytes, timeout_s=body_timeout_s)
    app.add_middleware(CanonicalLine)
    return app
