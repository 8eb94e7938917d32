"""Every refusal reaches the SDK as the exception class that its model names."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator.conftest import StartEmulator
from tests.emulator.emulator_under_test import ARN, Emulator, new_session_id


@pytest.mark.parametrize("session_id", ["a" * 32, "a" * 257], ids=["32 characters", "257 characters"])
@pytest.mark.parametrize("operation", ["invoke", "stop"])
def test_a_session_id_of_the_wrong_length_is_a_validation_exception(
    emulator: Emulator, operation: str, session_id: str
) -> None:
    with pytest.raises(emulator.client.exceptions.ValidationException) as caught:
        getattr(emulator, operation)(session_id)
    answer = caught.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert answer["reason"] == "FieldValidationFailed"
    assert [f["name"] for f in answer["fieldList"]] == ["runtimeSessionId"]


@pytest.mark.parametrize("session_id", ["a" * 33, "b" * 256])
def test_session_ids_at_both_limits_are_taken(emulator: Emulator, session_id: str) -> None:
    assert emulator.invoke(session_id)["headers"]["x-amzn-bedrock-agentcore-runtime-session-id"] == session_id
    emulator.stop(session_id)


def test_a_session_id_that_no_file_system_takes_is_served(emulator: Emulator) -> None:
    session_id = "../../" + "x" * 40
    cwd = Path(emulator.invoke(session_id)["cwd"])
    assert emulator.state_dir.resolve() / "sessions" in cwd.parents
    emulator.stop(session_id)


@pytest.mark.parametrize("changes", [{"agentRuntimeArn": ARN + "x"}, {"qualifier": "nowhere"}])
def test_an_unknown_runtime_or_qualifier_is_not_found(emulator: Emulator, changes: dict[str, str]) -> None:
    address = {"agentRuntimeArn": ARN, "runtimeSessionId": new_session_id(), **changes}
    with pytest.raises(emulator.client.exceptions.ResourceNotFoundException):
        emulator.client.invoke_agent_runtime(payload=b"{}", **address)
    with pytest.raises(emulator.client.exceptions.ResourceNotFoundException):
        emulator.client.stop_runtime_session(**address)


def test_stopping_a_session_that_is_not_there_is_not_found(emulator: Emulator) -> None:
    with pytest.raises(emulator.client.exceptions.ResourceNotFoundException):
        emulator.stop(new_session_id())


def test_a_payload_over_the_limit_is_a_validation_exception(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(payload_limit_bytes=1_000_000)

    def size_of(payload: bytes) -> int:
        answer = emulator.client.invoke_agent_runtime(
            agentRuntimeArn=ARN, runtimeSessionId="s" * 40, payload=payload, contentType="application/octet-stream"
        )
        with closing(answer["response"]) as body:
            return int(json.loads(body.read())["size"])

    assert size_of(b"\xff" * 1_000_000) == 1_000_000
    with pytest.raises(emulator.client.exceptions.ValidationException) as caught:
        size_of(b"\xff" * 1_000_001)
    assert caught.value.response["fieldList"][0]["name"] == "payload"
    assert size_of(b"\xff" * 10) == 10


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_container_that_answers_an_error_is_a_runtime_client_error(emulator: Emulator, status: int) -> None:
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError) as caught:
        emulator.invoke(session_id, do="fail", status=status)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert str(status) in str(caught.value)
    assert "container.log" in str(caught.value)
    emulator.stop(session_id)


@pytest.mark.parametrize("how", ["die", "die_inside"])
def test_a_container_that_dies_while_answering_is_a_runtime_client_error_and_the_next_call_gets_a_fresh_one(
    emulator: Emulator, how: str
) -> None:
    session_id = new_session_id()
    first = emulator.invoke(session_id)
    with pytest.raises(emulator.client.exceptions.RuntimeClientError):
        emulator.invoke(session_id, do=how)
    assert emulator.wait_ended(session_id)["reason"] == "exited"
    second = emulator.invoke(session_id)
    assert (second["pid"], second["cwd"]) != (first["pid"], first["cwd"])
    assert second["calls"] == 1
    emulator.stop(session_id)


def _raw(emulator: Emulator, method: str, path: str, headers: dict[str, str], body: bytes = b"{}") -> tuple[Any, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", emulator.service.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer, json.loads(answer.read())
    finally:
        connection.close()


def test_without_a_session_id_the_service_makes_one_and_says_which(emulator: Emulator) -> None:
    answer, seen = _raw(emulator, "POST", f"/runtimes/{ARN.replace('/', '%2F')}/invocations", {})
    session_id = answer.headers["X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"]
    assert answer.status == 200
    assert len(session_id) >= 33
    assert seen["headers"]["x-amzn-bedrock-agentcore-runtime-session-id"] == session_id
    emulator.stop(session_id)


def test_an_operation_that_does_not_exist_is_an_error_of_the_service(emulator: Emulator) -> None:
    with pytest.raises(ClientError, match="UnknownOperationException"):
        emulator.client.list_sessions(memoryId="memory-0123456789", actorId="actor")


def test_a_stop_with_a_broken_body_cannot_be_parsed(emulator: Emulator) -> None:
    headers = {"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": new_session_id()}
    answer, body = _raw(emulator, "POST", f"/runtimes/{ARN}/stopruntimesession", headers, b"{nonsense")
    assert (answer.status, answer.headers["x-amzn-errortype"]) == (400, "ValidationException")
    assert body["reason"] == "CannotParse"


def test_an_account_and_an_id_name_a_runtime_as_an_arn_does(emulator: Emulator) -> None:
    path = "/runtimes/scripted-a1b2c3/invocations?accountId="
    answer, _ = _raw(emulator, "POST", path + "123456789012", {})
    assert answer.status == 200
    answer, _ = _raw(emulator, "POST", path + "210987654321", {})
    assert answer.status == 404
    answer, body = _raw(emulator, "POST", path + "12", {})
    assert (answer.status, body["fieldList"][0]["name"]) == (400, "accountId")
