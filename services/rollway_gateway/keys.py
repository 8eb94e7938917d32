"""Who an agent's request is: the session it names, and the sample key that says it may.

The key travels as OpenAI's or Anthropic's API key, or in the path after the session id, for agents that send a fixed
one: ``/sessions/{id}.{key}/v1``. Where keys are required, a request without the key of the very session it names is
refused before anything is looked up, so that a refusal does not tell which sessions exist.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from rollway_gateway.openai_errors import AgentError
from rollway_kit.keys import PREFIX, KeyRefused, KeyRing

_AFTER_ID = f".{PREFIX}"


class SessionKeys:
    """Issues sample keys and reads them from requests."""

    def __init__(self, signing: Iterable[bytes] | None, *, required: bool) -> None:
        """
        Args:
            signing: secrets, see `KeyRing`; None: a random one for this process.
        """
        self._ring = KeyRing([secrets.token_bytes(32)] if signing is None else signing)
        self.required = required

    def issue(self, session_id: str, expires_at: float) -> str:
        return self._ring.issue("sample", session_id, expires_at)

    def in_path(self, quoted_id: str, key: str) -> str:
        """The session's part of an agent's base URL."""
        return f"{quoted_id}.{key}" if self.required else quoted_id

    def session_of(self, named: str | None, headers: Mapping[bytes, bytes]) -> str:
        """The session a request belongs to.

        Args:
            named: what stands for the session in the path, if anything does.

        Raises:
            AgentError: 401 without a key that is good, 403 with that of another session.
        """
        if named is not None and not self.required:
            return named
        session_id, offered = _apart(named, headers)
        reason = "none was sent"
        for key in offered:
            try:
                allowed = self._ring.read(key, "sample")
            except KeyRefused as e:
                reason = str(e)
                continue
            if session_id is not None and allowed != session_id:
                raise AgentError(403, "the key is another session's")
            return allowed
        if session_id is None:
            raise AgentError(
                401,
                "without a session in the URL (/sessions/{id}/v1/…) the API key must be a session ticket's: " + reason,
            )
        raise AgentError(401, f"this session needs the key of its ticket, as API key or in the base URL: {reason}")


def _apart(named: str | None, headers: Mapping[bytes, bytes]) -> tuple[str | None, list[str]]:
    """Session id and offered keys. A key in the path is the only one that counts."""
    if named is not None and _AFTER_ID in named:
        session_id, _, key = named.rpartition(_AFTER_ID)
        return session_id, [PREFIX + key]
    scheme, _, bearer = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    offered = [bearer.strip()] if scheme.lower() == "bearer" else []
    return named, [key for key in (*offered, headers.get(b"x-api-key", b"").decode("latin-1").strip()) if key]
