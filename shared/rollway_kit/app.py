"""The FastAPI app every control plane starts from: problems rendered, bodies bounded, one log line per request."""

from __future__ import annotations

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
from rollway_wire.problems import RollwayError, TooLarge, Unprocessable

log = structlog.get_logger()

PROBLEM_MEDIA_TYPE = "application/problem+json"


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
    """ASGI middleware: a request body over ``limit`` bytes is refused with 413, by its header or while it arrives.

    FastAPI answers 400 to whatever goes wrong while it reads a body, so the app's own answer is replaced.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        error = TooLarge(f"request body is over {self.limit} bytes")
        refusal = problem_response(error, scope["path"])
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.limit:
            await refusal(scope, receive, send)
            return
        seen, answering = 0, False

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise error
            return message

        async def guarded(message: Message) -> None:
            nonlocal answering
            if seen <= self.limit or answering:
                answering = True
                await send(message)

        try:
            await self.app(scope, bounded, guarded)
        except TooLarge as e:
            if e is not error:
                raise
        if seen > self.limit and not answering:
            await refusal(scope, receive, send)


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


def create_app(title: str, *, lifespan: Any, max_body_bytes: int, **kwargs: Any) -> FastAPI:
    """A FastAPI app with problem+json everywhere, a body limit and canonical log lines."""
    app = FastAPI(title=title, lifespan=lifespan, **kwargs)
    app.add_exception_handler(RollwayError, _on_rollway_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    app.add_middleware(CanonicalLine)
    return app
