"""The agents' side: raw ASGI for the model routes, so that a model call meets no framework on its way.

/sessions/{id}/v1/chat/completions · completions · models      id up to the first /v1, slashes allowed
                 /responses · messages · messages/count_tokens
/sessions/{id}.{key}/v1/…                                      with its key, where keys are required
/v1/…                                                          the session is in the API key

Some SDKs add /v1 to their base URL themselves: /v1/v1/… is /v1/….
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import TYPE_CHECKING

import orjson
import structlog
from starlette.types import Receive, Scope, Send

from rollway_gateway.call import ModelCall
from rollway_gateway.capture.ask import Kind, read_ask
from rollway_gateway.capture.json_body import read_object
from rollway_gateway.counting import count_tokens
from rollway_gateway.dialects.sending import TranslatedSend, send_refusal
from rollway_gateway.dialects.table import COUNT_TOKENS, dialect_of
from rollway_gateway.journal.problems import JournalDown
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.replies import send_error, send_whole
from rollway_gateway.session import Session
from rollway_gateway.upstream import WorkerLost, WorkerSilent, fetch
from rollway_kit.app import BODY_BYTES_PER_S
from rollway_wire.gateway import DEFAULT_POOL, SessionSpec
from rollway_wire.problems import BadRequest

if TYPE_CHECKING:
    from rollway_gateway.gateway import Gateway

log = structlog.get_logger()

_IN_PATH = re.compile(r"/sessions/(.+?)/v1(/.*)?", re.DOTALL)
RESPONSES = "/responses"
LONG_BODY = 1 << 16
"""Bytes of a request: to read it and to plan its call are two steps then."""
_KINDS: dict[str, Kind] = {
    "/chat/completions": "chat", "/completions": "text",
    RESPONSES: "chat", "/messages": "chat", COUNT_TOKENS: "chat",
}  # fmt: skip
_OWN = re.compile(r"/v1/(sessions|pools)(/|$)")
_FORWARDED = ("x-request-id", "traceparent", "tracestate")
"""Headers of the agent's request that go to the worker, where their value is plain ASCII."""
_PLAIN = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]{0,254}[\x21-\x7e])?")


def match(path: str) -> tuple[str | None, str] | None:
    """(what names the session in the path, or None; route after /v1) of an agent's path; None: not an agent's."""
    found = _IN_PATH.fullmatch(path)
    if found is not None:
        return found[1], _once(found[2] or "")
    if path.startswith("/v1") and path[3:4] in ("", "/") and not _OWN.match(path):
        return None, _once(path[3:])
    return None


def _once(route: str) -> str:
    return route[3:] if route.startswith("/v1/") else route


async def serve(gateway: Gateway, named: str | None, route: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request on an agent's route; every error in the shape of the route's provider."""
    started_at = time.time()
    headers: dict[bytes, bytes] = dict(scope["headers"])
    dialect = dialect_of(route)
    request_id = "" if dialect is None else _forwarded(headers).get("x-request-id") or f"req_{uuid.uuid4().hex}"
    try:
        kind = _route_kind(route, scope["method"])
        session = await _session(gateway, gateway.keys.session_of(named, headers))
        with session.visit():
            await _serve_in(gateway, session, route, kind, headers, request_id, started_at, receive, send)
    except AgentError as e:
        if dialect is None:
            await send_error(send, e)
        else:
            await send_refusal(send, dialect, e, request_id)


async def _serve_in(
    gateway: Gateway, session: Session, route: str, kind: Kind | None, headers: dict[bytes, bytes], request_id: str,
    started_at: float, receive: Receive, send: Send,
) -> None:  # fmt: skip
    if kind is None:
        await _models(gateway, session, send)
        return
    raw = await read_body(gateway, headers, receive)
    if route == COUNT_TOKENS:
        await count_tokens(gateway, session, read_object(raw), send)
        return
    answer, dialect = send, dialect_of(route)
    if dialect is not None:
        exchange = dialect.open(read_object(raw), session.responses)
        written = gateway.keeping.written if route == RESPONSES else None
        raw, answer = orjson.dumps(exchange.chat), TranslatedSend(dialect, exchange, send, request_id, written)
    ask = read_ask(kind, raw, session.sampling_params)
    if len(raw) > LONG_BODY:
        await gateway.pace.turn(len(raw))
    call = ModelCall(
        session=session, pool=gateway.pool(session.pool), store=gateway.store, client=gateway.connections,
        ask=ask, raw=raw, headers=_forwarded(headers),
        settings=gateway.settings, started_at=started_at, pace=gateway.pace,
        says_retry=headers.get(b"x-stainless-retry-count", b"0") not in (b"0", b""),
    )  # fmt: skip
    await call.run(receive, answer)


def _route_kind(route: str, method: str) -> Kind | None:
    """The kind of model call; None for the list of models."""
    kind = _KINDS.get(route)
    if kind is None and route != "/models":
        served = ", ".join(name[1:] for name in (*_KINDS, "/models"))
        raise AgentError(404, f"no route /v1{route}: this gateway serves {served}")
    allowed = ("POST",) if kind is not None else ("GET", "HEAD")
    if method not in allowed:
        raise AgentError(405, f"/v1{route} takes {allowed[0]}, not {method}", allow=", ".join(allowed))
    return kind


async def _session(gateway: Gateway, session_id: str) -> Session:
    found = gateway.store.find(session_id)
    if found is not None:
        return found
    try:
        if (stored := await gateway.find(session_id)) is not None:
            return stored
        if gateway.store.entry(session_id) is not None:
            raise AgentError(410, f"session {session_id!r} is sealed: no further calls")
        if gateway.store.is_gone(session_id):
            raise AgentError(410, f"session {session_id!r} was deleted")
        if not gateway.settings.implicit_sessions or gateway.keys.required:
            raise AgentError(404, f"no session {session_id!r}: open it with POST /v1/sessions")
        spec = SessionSpec(session_id=session_id, pool=DEFAULT_POOL)
        return (await gateway.open_session(spec, keeps_messages=True))[0]
    except BadRequest as e:
        raise AgentError(400, e.detail) from e
    except JournalDown as e:
        raise AgentError(503, f"{e.detail}: try again", retry_after_s=2) from e


async def read_body(gateway: Gateway, headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """A request's body, when it is its turn to be read: to join a long one takes long already.

    Raises:
        AgentError: 413, it is too large; 408, it is not whole in time; 400, the client went away.
    """
    limit, timeout_s = gateway.settings.max_body_bytes, gateway.settings.body_timeout_s
    declared = headers.get(b"content-length", b"")
    too_large = AgentError(413, f"the request body is over {limit} bytes")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size, more = 0, True
    due = asyncio.get_running_loop().time() + timeout_s
    while more:
        try:
            async with asyncio.timeout_at(due + size / BODY_BYTES_PER_S):
                message = await receive()
        except TimeoutError:
            raise AgentError(408, f"the request body was not whole in time: {timeout_s:g} s and more") from None
        if message["type"] == "http.disconnect":
            raise AgentError(400, "the client went away before its request was whole")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > limit:
            raise too_large
    await gateway.pace.turn(size)
    return b"".join(parts)


def _forwarded(headers: dict[bytes, bytes]) -> dict[str, str]:
    return {
        name: value.decode()
        for name in _FORWARDED
        if (value := headers.get(name.encode())) is not None and _PLAIN.fullmatch(value)
    }


async def _models(gateway: Gateway, session: Session, send: Send) -> None:
    """The list of models, as the session's worker gives it."""
    worker = gateway.pool(session.pool).choose(session.worker_id, ())
    try:
        status, content_type, body = await fetch(gateway.client, worker.api_url + "/models")
    except (WorkerLost, WorkerSilent) as e:
        raise AgentError(502, f"worker {worker.worker_id} failed: {e}") from e
    await send_whole(send, status, [(b"content-type", content_type.encode())], body)
