"""Errors as an agent sees them: OpenAI's error body with vLLM's field values.

The statuses are chosen by what OpenAI's SDK does with them: it retries 408, 409, 429 and 5xx, so what another try
cannot mend (a sealed session) is 410, and what it can (a fenced pool, an aborted generation) is 503.
"""

from __future__ import annotations

import orjson

from rollway_kit.keys import scrub

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    410: "GoneError",
    413: "RequestTooLargeError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


class AgentError(Exception):
    """An answer to the agent other than the engine's own."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(scrub(message))
        self.status = status
        self.message = scrub(message)
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow

    def body(self) -> bytes:
        error = {"message": self.message, "type": TYPES[self.status], "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})

    def event(self) -> bytes:
        """The end of a stream that has begun: an error event, as the engine ends one, and [DONE]."""
        return b"data: " + self.body() + b"\n\ndata: [DONE]\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        out = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            out.append((b"retry-after", str(max(1, round(self.retry_after_s))).encode()))
        if self.allow is not None:
            out.append((b"allow", self.allow.encode()))
        return out
