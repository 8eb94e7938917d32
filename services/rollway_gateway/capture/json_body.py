"""A request body as JSON, within what can be passed on."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from typing import Any

import orjson

from rollway_gateway.openai_errors import AgentError

DEEPEST = 200
"""Levels of nesting. The writer of what goes on to the engine stops at 254, and what walks a body recurses."""
_LONG = 1 << 16
"""Bytes of a body whose brackets take longer to count than its values to walk: most of a long one is text."""
_STEP = [0] * 256
for _opens, _closes in ("{}", "[]"):
    _STEP[ord(_opens)], _STEP[ord(_closes)] = 1, -1
_NOT_BRACKETS = bytes(i for i in range(256) if not _STEP[i])


def read_object(raw: bytes) -> dict[str, Any]:
    """The request body.

    Raises:
        AgentError: 400, it is no JSON object, or one nested too deeply.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as e:
        raise AgentError(400, f"the request body is not JSON: {e}", param="body") from None
    if not isinstance(body, dict):
        raise AgentError(400, "the request body must be a JSON object", param="body")
    if not (len(raw) < _LONG and is_shallow(raw)) and depth(body) > DEEPEST:
        raise AgentError(400, f"the request body is nested more than {DEEPEST} levels deep", param="body")
    return body


def is_shallow(raw: bytes) -> bool:
    """Brackets cannot add up to more than `DEEPEST` levels; those in strings are counted too, so False says nothing."""
    if raw.count(b"{") + raw.count(b"[") <= DEEPEST:
        return True
    brackets = raw.translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets))) <= DEEPEST


def depth(value: Any) -> int:
    """Levels of lists and objects, level by level, so that it recurses nowhere."""
    level, levels = _containers([value]), 0
    while level:
        levels += 1
        level = [inner for v in level for inner in _containers(v.values() if isinstance(v, dict) else v)]
    return levels


def _containers(values: Collection[Any]) -> list[Any]:
    kinds = set(map(type, values))  # ids by the thousand are told by their type at once
    return [v for v in values if isinstance(v, dict | list)] if dict in kinds or list in kinds else []
