"""Server-sent events with a name, as both providers send them."""

from __future__ import annotations

from typing import Any

import orjson


def event(payload: dict[str, Any]) -> bytes:
    """The event named by the payload's ``type``."""
    name: str = payload["type"]
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"
