"""One error tree for every Rollway API, rendered as RFC 9457 problem+json.

    RollwayError
    ├── BadRequest 400
    ├── Unauthorized 401
    ├── Forbidden 403
    ├── NotFound 404
    ├── NotAcceptable 406
    ├── RequestTimeout 408
    ├── Conflict 409
    ├── Gone 410
    ├── TooLarge 413
    ├── Unprocessable 422
    ├── TooManyRequests 429
    ├── BadGateway 502        something we call answered wrongly
    ├── Unavailable 503       try again later; may carry retry_after_s
    ├── GatewayTimeout 504
    └── ContractViolation 500 a promise of ours is broken: a bug, loud

On OpenAI- and Anthropic-compatible routes the gateway renders the same errors in that provider's own shape.
"""

from __future__ import annotations

from typing import Any


class RollwayError(Exception):
    """Base of everything Rollway raises across a boundary."""

    status: int = 500
    code: str = "internal_error"

    def __init__(self, detail: str, *, retry_after_s: float | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.extra = extra

    def problem(self, instance: str | None = None) -> dict[str, Any]:
        """The RFC 9457 object: type, title, status, detail, instance, and extension members."""
        body: dict[str, Any] = {
            "type": f"urn:rollway:problem:{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "detail": self.detail,
        }
        if instance is not None:
            body["instance"] = instance
        if self.retry_after_s is not None:
            body["retry_after_s"] = self.retry_after_s
        return {**self.extra, **body}


class BadRequest(RollwayError):
    status, code = 400, "bad_request"


class Unauthorized(RollwayError):
    status, code = 401, "unauthorized"


class Forbidden(RollwayError):
    status, code = 403, "forbidden"


class NotFound(RollwayError):
    status, code = 404, "not_found"


class NotAcceptable(RollwayError):
    status, code = 406, "not_acceptable"


class RequestTimeout(RollwayError):
    status, code = 408, "request_timeout"


class Conflict(RollwayError):
    status, code = 409, "conflict"


class Gone(RollwayError):
    status, code = 410, "gone"


class TooLarge(RollwayError):
    status, code = 413, "too_large"


class Unprocessable(RollwayError):
    status, code = 422, "unprocessable"


class TooManyRequests(RollwayError):
    status, code = 429, "too_many_requests"


class BadGateway(RollwayError):
    status, code = 502, "bad_gateway"


class Unavailable(RollwayError):
    status, code = 503, "unavailable"


class GatewayTimeout(RollwayError):
    status, code = 504, "gateway_timeout"


class ContractViolation(RollwayError):
    status, code = 500, "contract_violation"


BY_STATUS: dict[int, type[RollwayError]] = {
    c.status: c
    for c in (
        BadRequest, Unauthorized, Forbidden, NotFound, NotAcceptable, RequestTimeout, Conflict, Gone, TooLarge,
        Unprocessable, TooManyRequests, BadGateway, Unavailable, GatewayTimeout, ContractViolation,
    )
}  # fmt: skip


def from_problem(status: int, body: Any) -> RollwayError:
    """The error a peer's problem+json stands for; any other body becomes the detail."""
    cls = BY_STATUS.get(status, BadGateway if status >= 500 else BadRequest)
    if isinstance(body, dict):
        retry = body.get("retry_after_s")
        return cls(str(body.get("detail") or body), retry_after_s=retry if isinstance(retry, int | float) else None)
    return cls(str(body)[:500])
