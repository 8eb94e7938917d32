"""API keys that carry a session, for agents that take only a fixed base URL: ``rw-<session id, base64url>.<mac>``."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

PREFIX = "rw-"


class SessionKeys:
    """Makes and reads session keys. The same session always gets the same key."""

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(32)

    def issue(self, session_id: str) -> str:
        name = base64.urlsafe_b64encode(session_id.encode()).rstrip(b"=").decode()
        return f"{PREFIX}{name}.{self._mac(name)}"

    def session_of(self, key: str) -> str | None:
        """The session id of a key made here, else None."""
        name, dot, mac = key.removeprefix(PREFIX).partition(".")
        if not key.startswith(PREFIX) or not dot or not hmac.compare_digest(self._mac(name).encode(), mac.encode()):
            return None
        try:
            return base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None

    def _mac(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()[:32]
