"""The saved document: the S3 object that is a rollout's result."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import Any

from rollway_shim.invocation import Invocation
from rollway_shim.jsonable import NotSerialisable, to_json

CANCELLED = "cancelled"
"""The stop_reason of a rollout that was cancelled."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent returned ``value``."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The agent raised, or was cancelled."""

    error: BaseException
    stack: str | None = None
    """Where the agent was, for one that could not be interrupted."""


def result_document(value: Any, invocation: Invocation, echo: dict[str, Any] | None) -> dict[str, Any]:
    """What is saved of a returned ``value``: itself and the reserved keys.

    Raises:
        TypeError: not an object, or something in it that JSON cannot hold (`NotSerialisable`), NaN included.
        ValueError: a pydantic model in it contains itself.
    """
    return _with_identity(_result(value), invocation, echo)


def error_document(raised: Raised, invocation: Invocation, echo: dict[str, Any] | None) -> dict[str, Any]:
    """What is saved of an error: status_code 500, stop_reason, traceback (keys scrubbed) and the reserved keys."""
    try:
        return _with_identity(_error(raised, invocation), invocation, echo)
    except NotSerialisable:  # the payload itself holds NaN, which Python reads from a request and JSON cannot hold
        return _with_identity(_error(raised, invocation), invocation, None)


def _result(value: Any) -> dict[str, Any]:
    result = to_json(value)
    if not isinstance(result, dict):
        raise TypeError(f"the agent must return a dict, got {type(value).__name__}")
    result.setdefault("status_code", 200)
    result.setdefault("stop_reason", "end_turn")
    if not isinstance(result["status_code"], int) or isinstance(result["status_code"], bool):
        raise TypeError(f"result.status_code must be an integer, got {result['status_code']!r:.80}")
    if not isinstance(result["stop_reason"], str):
        raise TypeError(f"result.stop_reason must be text, got {result['stop_reason']!r:.80}")
    return result


def _error(outcome: Raised, invocation: Invocation) -> dict[str, Any]:
    error = outcome.error
    cancelled = isinstance(error, asyncio.CancelledError)
    reason = CANCELLED if cancelled else str(error) or type(error).__name__
    trace = "".join(traceback.format_exception(error)) + (outcome.stack or "")
    text: dict[str, Any] = to_json({"stop_reason": invocation.scrub(reason), "traceback": invocation.scrub(trace)})
    return {"status_code": 500, **text}


def _with_identity(body: dict[str, Any], invocation: Invocation, echo: dict[str, Any] | None) -> dict[str, Any]:
    if invocation.config is None:
        return body
    body["input_id"] = invocation.config.input_id
    body["s3_bucket"] = invocation.config.s3_bucket
    body["result_key"] = invocation.result_key
    body["payload"] = to_json(echo, "payload")
    return body
