"""Anthropic's errors, with the statuses by which its SDK decides to try again: 408, 409, 429 and 5xx.

An overloaded service is 529 there, so what is 503 here becomes that.
"""

from __future__ import annotations

from typing import Any

from rollway_gateway.dialects.dialect import Failure

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Error type by status; other 4xx are invalid_request_error, other 5xx api_error."""


def status_of(failure: Failure) -> int:
    return 529 if failure.status == 503 else failure.status


def error_object(failure: Failure) -> dict[str, Any]:
    status = status_of(failure)
    named = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": failure.kind or named, "message": failure.message}}
