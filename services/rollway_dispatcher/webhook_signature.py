"""Whom webhooks may call and how their calls are signed. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from rollway_wire.problems import Forbidden

WHSEC = "whsec_"


def check_target(url: str, hosts: Collection[str]) -> None:
    """Raise `Forbidden` unless the address is of a host that may be called.

    Args:
        hosts: names, ``*.`` before one for all below it, a ``:port`` after one for that port alone.
    """
    parts = urlsplit(url)
    host, port = (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)
    for allowed in hosts:
        name, _, only = allowed.lower().partition(":")
        matches = host.endswith(name[1:]) and host != name[2:] if name.startswith("*.") else host == name
        if matches and (not only or int(only) == port):
            return
    raise Forbidden(f"webhooks may not call {host}:{port}: ROLLWAY_DISPATCHER_WEBHOOK_HOSTS lists what they may")


def signing_key(secret: str) -> bytes:
    """The key of a secret: of one that begins with ``whsec_`` the bytes that its rest is base64 of.

    Raises:
        ValueError: the rest is not base64.
    """
    if not secret.startswith(WHSEC):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(WHSEC), validate=True)
    except binascii.Error as e:
        raise ValueError(f"after {WHSEC} it must be base64: {e}") from e


def signed(key: bytes, event_id: str, now: float, body: bytes) -> dict[str, str]:
    """The headers of one call."""
    stamp = str(int(now))
    mac = hmac.digest(key, f"{event_id}.{stamp}.".encode() + body, hashlib.sha256)
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }
