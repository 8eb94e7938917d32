"""What the service checks before it looks anything up: lengths and patterns of every member, from the SDK's model."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from rollway_emulator.errors import ValidationException

SESSION_HEADER = "x-amzn-bedrock-agentcore-runtime-session-id"
USER_HEADER = "x-amzn-bedrock-agentcore-runtime-user-id"
TRACE_HEADER = "x-amzn-trace-id"
CUSTOM_HEADER_PREFIX = "x-amzn-bedrock-agentcore-runtime-custom-"
DEFAULT_QUALIFIER = "DEFAULT"

_ACCOUNT_ID = re.compile(r"[0-9]{12}")
_CLIENT_TOKEN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,256}")


@dataclass(frozen=True, slots=True)
class HeaderMember:
    """A member that travels as a header, with its length limits in characters."""

    name: str
    header: str
    minimum: int
    maximum: int


SESSION_ID = HeaderMember("runtimeSessionId", SESSION_HEADER, 33, 256)
INVOKE_MEMBERS = (
    SESSION_ID,
    HeaderMember("contentType", "content-type", 1, 256),
    HeaderMember("accept", "accept", 1, 256),
    HeaderMember("mcpSessionId", "mcp-session-id", 1, 1024),
    HeaderMember("mcpProtocolVersion", "mcp-protocol-version", 1, 1024),
    HeaderMember("runtimeUserId", USER_HEADER, 1, 1024),
    HeaderMember("traceId", TRACE_HEADER, 0, 128),
    HeaderMember("traceParent", "traceparent", 0, 128),
    HeaderMember("traceState", "tracestate", 0, 512),
    HeaderMember("baggage", "baggage", 0, 8192),
)


@dataclass(frozen=True, slots=True)
class RuntimeAddress:
    """Which runtime a call is for: an ARN, or an id with the account that owns it."""

    arn: str
    account_id: str | None
    qualifier: str


@dataclass(frozen=True, slots=True)
class InvokeCall:
    address: RuntimeAddress
    session_id: str
    """As given, or a fresh one where the caller gave none."""
    forwarded: dict[str, str]
    """Headers the container receives."""


@dataclass(frozen=True, slots=True)
class StopCall:
    address: RuntimeAddress
    session_id: str
    client_token: str | None


def _length_problem(size: int, minimum: int, maximum: int) -> str | None:
    if size < minimum:
        return f"must have length greater than or equal to {minimum}, got {size}"
    if size > maximum:
        return f"must have length less than or equal to {maximum}, got {size}"
    return None


def _refuse(problems: list[tuple[str, str]]) -> None:
    if problems:
        shown = "; ".join(f"value at '{name}' {message}" for name, message in problems)
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected"
        raise ValidationException(f"{count}: {shown}", problems)


def _header_problems(members: tuple[HeaderMember, ...], headers: Mapping[str, str]) -> list[tuple[str, str]]:
    problems = []
    for member in members:
        if member.header in headers:
            problem = _length_problem(len(headers[member.header]), member.minimum, member.maximum)
            if problem is not None:
                problems.append((member.name, problem))
    return problems


def _address(arn: str, query: Mapping[str, str], problems: list[tuple[str, str]]) -> RuntimeAddress:
    account_id = query.get("accountId")
    if account_id is not None and not _ACCOUNT_ID.fullmatch(account_id):
        problems.append(("accountId", "must be 12 digits"))
    return RuntimeAddress(arn, account_id, query.get("qualifier") or DEFAULT_QUALIFIER)


def read_invoke(arn: str, headers: Mapping[str, str], query: Mapping[str, str]) -> InvokeCall:
    """The call, from its parts. ``headers`` by lower-case name.

    Raises:
        ValidationException: naming every member that breaks its constraint.
    """
    problems = _header_problems(INVOKE_MEMBERS, headers)
    address = _address(arn, query, problems)
    _refuse(problems)
    session_id = headers.get(SESSION_HEADER) or str(uuid.uuid4())
    forwarded = {m.header: headers[m.header] for m in INVOKE_MEMBERS if m.header in headers}
    forwarded |= {name: value for name, value in headers.items() if name.startswith(CUSTOM_HEADER_PREFIX)}
    forwarded[SESSION_HEADER] = session_id
    return InvokeCall(address, session_id, forwarded)


def read_stop(arn: str, headers: Mapping[str, str], query: Mapping[str, str], body: bytes) -> StopCall:
    """The call, from its parts; ``body`` is empty or ``{"clientToken": …}``.

    Raises:
        ValidationException: no session id, a constraint broken, or a body that is not a JSON object.
    """
    problems = _header_problems((SESSION_ID,), headers)
    if SESSION_HEADER not in headers:
        problems.append((SESSION_ID.name, "must not be null"))
    address = _address(arn, query, problems)
    token = _client_token(body)
    if token is not None:
        problem = _length_problem(len(token), 33, 256)
        if problem is None and not _CLIENT_TOKEN.fullmatch(token):
            problem = f"must satisfy regular expression pattern: {_CLIENT_TOKEN.pattern}"
        if problem is not None:
            problems.append(("clientToken", problem))
    _refuse(problems)
    return StopCall(address, headers[SESSION_HEADER], token)


def _client_token(body: bytes) -> str | None:
    try:
        fields = json.loads(body) if body.strip() else {}
    except ValueError as e:
        raise ValidationException(f"the body is not JSON: {e}", reason="CannotParse") from e
    token = fields.get("clientToken") if isinstance(fields, dict) else fields
    if not isinstance(fields, dict) or not (token is None or isinstance(token, str)):
        raise ValidationException("the body must be an object, clientToken in it a string", reason="CannotParse")
    return token


def check_payload(size: int, limit: int) -> None:
    """Refuse a payload of ``size`` bytes over ``limit``.

    Raises:
        ValidationException: naming the member ``payload``.
    """
    if size > limit:
        _refuse([("payload", f"must have length less than or equal to {limit} bytes")])
