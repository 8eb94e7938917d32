"""The service's errors, as the SDK's model of ``bedrock-agentcore`` (API version 2024-02-28) names them.

    ServiceError
    ├── ValidationException 400           a field or the payload breaks a constraint; names the fields
    ├── ServiceQuotaExceededException 402 one more session would exceed the active-session quota
    ├── ResourceNotFoundException 404     unknown runtime, qualifier or session
    ├── UnknownOperationException 404     no operation lives at this method and path
    ├── RuntimeClientError 424            the container failed: did not start, answered non-2xx, died
    ├── ThrottlingException 429           past the requests per second that invoke and stop share
    └── InternalServerException 500       a bug of the emulator, loud

An SDK reads the class from the ``x-amzn-errortype`` header and the members from the JSON body (rest-json protocol).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ServiceError(Exception):
    """Base of everything an AWS route answers instead of a result."""

    status: int = 500
    code: str = "InternalServerException"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> dict[str, Any]:
        return {"message": self.message}

    def headers(self) -> dict[str, str]:
        return {"x-amzn-errortype": self.code}


class InternalServerException(ServiceError):
    status, code = 500, "InternalServerException"


class ValidationException(ServiceError):
    """``fields``: (member name, what it must satisfy) for each member refused."""

    status, code = 400, "ValidationException"

    def __init__(
        self, message: str, fields: Sequence[tuple[str, str]] = (), *, reason: str = "FieldValidationFailed"
    ) -> None:
        super().__init__(message)
        self.fields = tuple(fields)
        self.reason = reason

    def body(self) -> dict[str, Any]:
        listed = [{"name": name, "message": message} for name, message in self.fields]
        return {"message": self.message, "reason": self.reason, "fieldList": listed}


class ServiceQuotaExceededException(ServiceError):
    status, code = 402, "ServiceQuotaExceededException"


class ResourceNotFoundException(ServiceError):
    status, code = 404, "ResourceNotFoundException"


class UnknownOperationException(ServiceError):
    status, code = 404, "UnknownOperationException"


class RuntimeClientError(ServiceError):
    status, code = 424, "RuntimeClientError"


class ThrottlingException(ServiceError):
    status, code = 429, "ThrottlingException"
