"""Identifiers and S3 keys.

A session id is one rollout attempt's identity at the runtime, at the gateway and in S3: the same string everywhere.
AgentCore asks for 33 to 256 characters (InvokeAgentRuntime, ``runtimeSessionId``).
"""

from __future__ import annotations

import re
import uuid
from urllib.parse import quote

SESSION_ID_MIN = 33
SESSION_ID_MAX = 256

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_SEGMENT = re.compile(r"[A-Za-z0-9!_.*'()=+@:,-]+")  # S3's safe characters, without the slash


def new_session_id() -> str:
    """A fresh session id (36 characters)."""
    return str(uuid.uuid4())


def new_batch_id() -> str:
    """A fresh batch id, short enough to read aloud in a log."""
    return f"b{uuid.uuid4().hex[:15]}"


def check_session_id(value: str) -> str:
    """Return ``value`` if AgentCore would take it as a runtime session id.

    Raises:
        ValueError: too short, too long, or with a character no header or URL segment should carry.
    """
    if not SESSION_ID_MIN <= len(value) <= SESSION_ID_MAX:
        raise ValueError(f"session id must have {SESSION_ID_MIN} to {SESSION_ID_MAX} characters, got {len(value)}")
    if not _SESSION_ID.fullmatch(value):
        raise ValueError("session id holds letters, digits, '_', '.', ':' and '-', and starts with a letter or digit")
    return value


def check_segment(value: str, name: str) -> str:
    """Return ``value`` if it can stand as one segment of an S3 key.

    Raises:
        ValueError: empty, over 256 characters, with a slash, or with a character outside S3's safe set.
    """
    if len(value) > 256 or not _SEGMENT.fullmatch(value) or value in (".", ".."):
        raise ValueError(f"{name} must be 1 to 256 of letters, digits and !_.*'()=+@:,- (no slash), got {value!r:.80}")
    return value


def result_key(exp_id: str, input_id: str, session_id: str) -> str:
    """Where the shim saves a rollout's result: ``{exp_id}/{input_id}/{session_id}.json``.

    ``exp_id`` may hold slashes: the dispatcher uses ``{experiment_id}/{batch_id}`` so that one prefix lists one batch.
    """
    return f"{exp_id}/{input_id}/{session_id}.json"


def session_id_of(key: str) -> str | None:
    """The session id a result key names, or None for a key that is not a result's."""
    name = key.rsplit("/", 1)[-1]
    return name[:-5] if name.endswith(".json") and len(name) > 5 else None


def trajectory_key(prefix: str, session_id: str) -> str:
    """Where the gateway puts a sealed trajectory, packed (`rollway_wire.packed`): ``{prefix}/{session_id}.rwpk``.

    A gateway's session id may hold more than S3's safe characters; those are percent-encoded, slashes too.
    """
    return f"{prefix}/{quote(session_id, safe='')}.rwpk"
