"""Signed keys: what a bearer may do, for which session, until when. Nothing is stored, nothing is looked up.

    rw1-<base64url of: secret's name 4 | scope 1 | expiry 5 | mac 16 | session id>

Numbers are octets, the expiry seconds since 1970, the mac HMAC-SHA256 over everything else, truncated. A secret is
replaced by putting the new one before the old one: the first signs, all verify.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterable
from typing import Literal

PREFIX = "rw1-"
SHORTEST_SECRET = 16
Scope = Literal["sample", "report"]
_SCOPES: dict[Scope, bytes] = {"sample": b"\x01", "report": b"\x02"}
_NAME, _STAMP, _MAC = 4, 5, 16
_HEAD = _NAME + 1 + _STAMP + _MAC
_KEY = re.compile(rf"{PREFIX}[A-Za-z0-9_-]+")


class KeyRefused(Exception):
    """The message says why and never repeats the key."""


class KeyRing:
    """Issues and reads the keys of one service."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        """
        Args:
            secrets: the first signs; all of them verify.

        Raises:
            ValueError: none.
        """
        # What signs is derived, so that a secret used elsewhere too is never fed with messages of another protocol.
        signing = [hmac.digest(secret, b"rollway key 1", "sha256") for secret in secrets]
        if not signing:
            raise ValueError("a key ring needs a secret")
        self._by_name = {hashlib.sha256(key).digest()[:_NAME]: key for key in reversed(signing)}
        self._current = hashlib.sha256(signing[0]).digest()[:_NAME]

    def issue(self, scope: Scope, session_id: str, expires_at: float) -> str:
        """The key of a session. The same arguments give the same key."""
        head = self._current + _SCOPES[scope] + int(expires_at).to_bytes(_STAMP, "big")
        name = session_id.encode()
        mac = self._mac(self._by_name[self._current], head, name)
        return PREFIX + base64.urlsafe_b64encode(head + mac + name).rstrip(b"=").decode()

    def read(self, key: str, scope: Scope, now: float | None = None) -> str:
        """The session id of a key that may do ``scope`` now.

        Raises:
            KeyRefused: not a key of this service, of another scope, or expired.
        """
        raw = _decoded(key)
        head, mac, name = raw[: _HEAD - _MAC], raw[_HEAD - _MAC : _HEAD], raw[_HEAD:]
        secret = self._by_name.get(head[:_NAME])
        if secret is None or not hmac.compare_digest(self._mac(secret, head, name), mac):
            raise KeyRefused("it is not a key of this service")
        if head[_NAME : _NAME + 1] != _SCOPES[scope]:
            raise KeyRefused(f"it is not a key to {scope} with")
        if int.from_bytes(head[_NAME + 1 :], "big") <= (time.time() if now is None else now):
            raise KeyRefused("it has expired")
        return name.decode()

    @staticmethod
    def _mac(secret: bytes, head: bytes, name: bytes) -> bytes:
        return hmac.digest(secret, head + name, "sha256")[:_MAC]


def _decoded(key: str) -> bytes:
    if not key.startswith(PREFIX) or not key.isascii():
        raise KeyRefused("it is not a key of this service")
    text = key.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise KeyRefused("it is not a key of this service") from None
    if len(raw) <= _HEAD:
        raise KeyRefused("it is not a key of this service")
    return raw


def split_secrets(text: str) -> list[bytes]:
    """A setting's secrets, comma-separated.

    Raises:
        ValueError: none, or one shorter than `SHORTEST_SECRET` characters.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or any(len(part) < SHORTEST_SECRET for part in found):
        raise ValueError(f"must be one or more secrets of at least {SHORTEST_SECRET} characters, comma-separated")
    return [part.encode() for part in found]


def scrub(text: str) -> str:
    """``text`` with every signed key taken out: for logs, and for errors that repeat a path."""
    return _KEY.sub(f"{PREFIX}[redacted]", text) if PREFIX in text else text
