"""The request checks against the SDK's own model of the service, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.loaders import Loader

from rollway_emulator import errors
from rollway_emulator.validation import (
    INVOKE_MEMBERS,
    SESSION_HEADER,
    HeaderMember,
    check_payload,
    read_invoke,
    read_stop,
)

MODEL: dict[str, Any] = Loader().load_service_model("bedrock-agentcore", "service-2")
SHAPES = MODEL["shapes"]
SESSION = "s" * 40
HEADERS = {SESSION_HEADER: SESSION}


def test_members_are_those_of_the_sdks_model() -> None:
    """Same names, same headers, same limits, none left out."""
    described = SHAPES["InvokeAgentRuntimeRequest"]["members"]
    in_headers = {
        name: (m["locationName"].lower(), SHAPES[m["shape"]]["min"], SHAPES[m["shape"]]["max"])
        for name, m in described.items()
        if m.get("location") == "header"
    }
    assert {m.name: (m.header, m.minimum, m.maximum) for m in INVOKE_MEMBERS} == in_headers
    assert SHAPES["Body"]["max"] == 100_000_000


@pytest.mark.parametrize(
    "error",
    [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.ServiceError)],
)
def test_errors_have_the_status_of_the_sdks_model(error: type[errors.ServiceError]) -> None:
    if error.code != "UnknownOperationException":  # of the protocol, not of the service
        assert SHAPES[error.code]["error"]["httpStatusCode"] == error.status


@pytest.mark.parametrize("member", INVOKE_MEMBERS, ids=lambda m: m.name)
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_each_member_at_its_limits(member: HeaderMember, past: int) -> None:
    longest = member.maximum + past
    headers = {**HEADERS, member.header: "x" * longest}
    if past <= 0:
        assert read_invoke("arn", headers, {}).forwarded[member.header] == "x" * longest
    else:
        with pytest.raises(errors.ValidationException) as caught:
            read_invoke("arn", headers, {})
        assert [name for name, _ in caught.value.fields] == [member.name]


@pytest.mark.parametrize("member", [m for m in INVOKE_MEMBERS if m.minimum > 0], ids=lambda m: m.name)
def test_each_member_below_its_minimum(member: HeaderMember) -> None:
    with pytest.raises(errors.ValidationException, match=f"greater than or equal to {member.minimum}"):
        read_invoke("arn", {**HEADERS, member.header: "x" * (member.minimum - 1)}, {})


def test_all_wrong_members_are_named_at_once() -> None:
    headers = {SESSION_HEADER: "short", "x-amzn-trace-id": "x" * 129}
    with pytest.raises(errors.ValidationException, match="3 validation errors") as caught:
        read_invoke("arn", headers, {"accountId": "12"})
    body = caught.value.body()
    assert [f["name"] for f in body["fieldList"]] == ["runtimeSessionId", "traceId", "accountId"]
    assert body["reason"] in SHAPES["ValidationExceptionReason"]["enum"]


def test_an_absent_session_id_is_made_and_fresh() -> None:
    one, two = read_invoke("arn", {}, {}), read_invoke("arn", {}, {})
    assert one.session_id != two.session_id
    assert one.forwarded == {SESSION_HEADER: one.session_id}
    assert 33 <= len(one.session_id) <= 256


def test_only_members_and_custom_headers_go_to_the_container() -> None:
    custom = "x-amzn-bedrock-agentcore-runtime-custom-colour"
    headers = {**HEADERS, custom: "green", "authorization": "AWS4-HMAC-SHA256 …", "x-amz-date": "1"}
    assert read_invoke("arn", headers, {}).forwarded == {SESSION_HEADER: SESSION, custom: "green"}


@pytest.mark.parametrize(
    ("query", "qualifier"), [({}, "DEFAULT"), ({"qualifier": ""}, "DEFAULT"), ({"qualifier": "p"}, "p")]
)
def test_the_qualifier_defaults(query: dict[str, str], qualifier: str) -> None:
    assert read_invoke("arn", HEADERS, query).address.qualifier == qualifier
    assert read_stop("arn", HEADERS, query, b"").address.qualifier == qualifier


@pytest.mark.parametrize(
    ("body", "token"),
    [(b"", None), (b"  ", None), (b"{}", None), (json.dumps({"clientToken": SESSION}).encode(), SESSION)],
)
def test_a_stop_with_or_without_a_client_token(body: bytes, token: str | None) -> None:
    call = read_stop("arn", HEADERS, {}, body)
    assert (call.session_id, call.client_token) == (SESSION, token)


@pytest.mark.parametrize(
    ("headers", "body", "reason", "fields"),
    [
        ({}, b"{}", "FieldValidationFailed", ["runtimeSessionId"]),
        ({SESSION_HEADER: "x"}, b"{}", "FieldValidationFailed", ["runtimeSessionId"]),
        (HEADERS, b"{", "CannotParse", []),
        (HEADERS, b"\xff", "CannotParse", []),
        (HEADERS, b"[]", "CannotParse", []),
        (HEADERS, b'"text"', "CannotParse", []),
        (HEADERS, b'{"clientToken": 7}', "CannotParse", []),
        (HEADERS, b'{"clientToken": "short"}', "FieldValidationFailed", ["clientToken"]),
        (HEADERS, json.dumps({"clientToken": "-" * 40}).encode(), "FieldValidationFailed", ["clientToken"]),
        (HEADERS, json.dumps({"clientToken": "x" * 257}).encode(), "FieldValidationFailed", ["clientToken"]),
    ],
)
def test_a_wrong_stop(headers: dict[str, str], body: bytes, reason: str, fields: list[str]) -> None:
    with pytest.raises(errors.ValidationException) as caught:
        read_stop("arn", headers, {}, body)
    assert (caught.value.reason, [name for name, _ in caught.value.fields]) == (reason, fields)


@pytest.mark.parametrize(("size", "passes"), [(0, True), (99, True), (100, True), (101, False)])
def test_the_payload_limit(size: int, passes: bool) -> None:
    if passes:
        check_payload(size, 100)
    else:
        with pytest.raises(errors.ValidationException, match="payload"):
            check_payload(size, 100)
