"""The key of a service's own API: asked for before anything of a request is read."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from rollway_kit.app import problem_response
from rollway_wire.problems import Unauthorized


class BearerGate:
    """ASGI middleware: without ``Authorization: Bearer`` and one of the keys, 401. Paths in ``free`` need none."""

    def __init__(self, app: ASGIApp, keys: Sequence[bytes], free: Collection[str] = (), setting: str = "") -> None:
        """
        Args:
            setting: named in the refusal, for whoever runs the service.
        """
        self.app = app
        self._digests = [hashlib.sha256(key).digest() for key in keys]
        self._free = frozenset(free)
        self._refusal = f"send Authorization: Bearer with the key of {setting}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._free or self._knows(scope):
            await self.app(scope, receive, send)
            return
        response = problem_response(Unauthorized(self._refusal), scope["path"])
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        offered = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(offered) != 1:
            return False
        kind, _, key = offered[0].partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all, so that time tells nothing
        return kind.lower() == b"bearer" and any(matches)


def is_loopback(host: str) -> bool:
    """Nothing outside this machine can reach what is bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
