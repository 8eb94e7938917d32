"""A container's stream reaches the SDK as it is written, and a broken one is seen as broken."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ResponseStreamingError

from tests.emulator.emulator_under_test import Emulator, new_session_id


def _stream(emulator: Emulator, session_id: str, gates: list[Path], **wish: Any) -> Any:
    payload = json.dumps({"do": "stream", "gates": [str(g) for g in gates], **wish}).encode()
    return emulator.client.invoke_agent_runtime(
        agentRuntimeArn=emulator.arn, runtimeSessionId=session_id, payload=payload, accept="text/event-stream"
    )


def test_each_event_arrives_before_the_next_one_is_written(emulator: Emulator, tmp_path: Path) -> None:
    """The agent writes event n only when gate n is open, and the test opens it only after event n-1 has arrived."""
    session_id = new_session_id()
    gates = [tmp_path / str(n) for n in range(5)]
    answer = _stream(emulator, session_id, gates)
    assert answer["contentType"] == "text/event-stream"
    assert answer["runtimeSessionId"] == session_id
    with closing(answer["response"]) as body:
        for number, gate in enumerate(gates):
            gate.touch()
            assert body.read(len(b"data: 0\n\n")) == f"data: {number}\n\n".encode()
        assert body.read() == b""
    emulator.stop(session_id)


def test_a_stream_whose_container_dies_ends_in_an_error(emulator: Emulator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    answer = _stream(emulator, new_session_id(), [gate], then="die")
    with closing(answer["response"]) as body, pytest.raises(ResponseStreamingError):
        body.read()


def test_stop_cuts_a_stream(emulator: Emulator, tmp_path: Path) -> None:
    session_id = new_session_id()
    open_gate = tmp_path / "open"
    open_gate.touch()
    answer = _stream(emulator, session_id, [open_gate, tmp_path / "never"])
    with closing(answer["response"]) as body:
        assert body.read(9) == b"data: 0\n\n"
        emulator.stop(session_id)
        with pytest.raises(ResponseStreamingError):
            body.read()
