"""``POST /v1/reports`` past the framework: 5,000 agents send a thousand heartbeats a second, and each would cost a
route, a log line and a validated request more than the report itself.

Only what is accepted is answered here, 204. Anything else (another body, key or length than a shim sends) goes to the
route in `reports`, which says what is wrong with it.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollway_dispatcher.dispatcher import Dispatcher
from rollway_wire.problems import Unauthorized
from rollway_wire.rollout import Report

PATH = "/v1/reports"
MOST_BYTES = 4096
_BEARER = b"Bearer "


class ReportsLane:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or (key := _key_of(scope)) is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        dispatcher: Dispatcher = scope["state"]["dispatcher"]
        if _taken(dispatcher, message, key):
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        unread: list[Message] = [message]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, again, send)


def _key_of(scope: Scope) -> str | None:
    """The bearer key of a request that looks like a shim's; None: it does not."""
    seen: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in seen:
            return None
        seen[name] = value
    length, key = seen.get(b"content-length", b""), seen.get(b"authorization", b"")
    if scope["method"] != "POST" or seen.get(b"content-type") != b"application/json":
        return None
    if not length.isdigit() or len(length) > 4 or int(length) > MOST_BYTES or not key.startswith(_BEARER):
        return None
    return key[len(_BEARER) :].decode("latin-1")


def _taken(dispatcher: Dispatcher, message: Message, key: str) -> bool:
    if message["type"] != "http.request" or message.get("more_body"):
        return False
    try:
        dispatcher.report(Report.model_validate_json(message.get("body", b"")), key)
    except (ValueError, Unauthorized):
        return False
    return True
