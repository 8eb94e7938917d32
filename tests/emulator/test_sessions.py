"""One container per session: what it is given, what it keeps, and that its end takes everything with it."""

from __future__ import annotations

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.emulator.conftest import StartEmulator
from tests.emulator.emulator_under_test import (
    AGENTS,
    ARN,
    OTHER_ARN,
    Emulator,
    alive,
    new_session_id,
    scripted_agent,
    wait_dead,
)
from tests.kit.deadlines import until


def test_calls_of_one_session_go_to_one_process(emulator: Emulator) -> None:
    session_id = new_session_id()
    first, second = emulator.invoke(session_id), emulator.invoke(session_id)
    assert first["pid"] == second["pid"]
    assert (first["calls"], second["calls"]) == (1, 2)
    emulator.stop(session_id)


def test_calls_that_meet_a_cold_start_share_one_process(emulator: Emulator) -> None:
    session_id = new_session_id()
    with ThreadPoolExecutor(8) as pool:
        pids = {answer["pid"] for answer in pool.map(lambda _: emulator.invoke(session_id), range(8))}
    assert len(pids) == 1
    emulator.stop(session_id)


def test_sessions_share_neither_process_nor_folder_nor_port(emulator: Emulator) -> None:
    one, two = new_session_id(), new_session_id()
    written = emulator.invoke(one, do="write", name="secret-of-one")
    assert len(set(written.values())) == 3
    first, second = emulator.invoke(one), emulator.invoke(two)
    assert first["files"] == ["secret-of-one"]
    assert second["files"] == []
    for name in ("PORT", "HOME", "TMPDIR"):
        assert first["env"][name] != second["env"][name]
    assert first["pid"] != second["pid"]
    assert not list(Path(second["env"]["HOME"]).iterdir())
    assert not list(Path(second["env"]["TMPDIR"]).iterdir())
    emulator.stop(one)
    emulator.stop(two)


def test_the_same_id_at_another_runtime_is_another_session(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(agents=[scripted_agent(), scripted_agent(OTHER_ARN, env={"WHO": "other"})])
    session_id = new_session_id()
    first = emulator.invoke(session_id)
    emulator.arn = OTHER_ARN
    second = emulator.invoke(session_id)
    assert (first["env"].get("WHO"), second["env"].get("WHO")) == (None, "other")
    assert first["pid"] != second["pid"]
    assert first["cwd"] != second["cwd"]


def test_a_stopped_session_leaves_nothing_and_the_same_id_begins_afresh(emulator: Emulator) -> None:
    session_id = new_session_id()
    emulator.invoke(session_id, do="write", name="left-behind")
    before = emulator.invoke(session_id)
    answer = emulator.stop(session_id)
    assert (answer["statusCode"], answer["runtimeSessionId"]) == (200, session_id)
    assert not alive(before["pid"])
    assert not Path(before["cwd"]).exists()
    after = emulator.invoke(session_id)
    assert (after["calls"], after["files"]) == (1, [])
    assert after["pid"] != before["pid"]
    emulator.stop(session_id)


def test_stop_kills_children_grandchildren_and_those_that_left_the_group(emulator: Emulator) -> None:
    session_id = new_session_id()
    pids = emulator.invoke(session_id, do="family")["pids"]
    assert all(map(alive, pids))
    emulator.stop(session_id)
    assert not any(map(alive, pids))


def test_a_process_that_exits_takes_its_children_with_it(emulator: Emulator) -> None:
    session_id = new_session_id()
    pids = emulator.invoke(session_id, do="family")["pids"]
    os.kill(pids[0], signal.SIGKILL)
    wait_dead(pids)
    assert emulator.wait_ended(session_id)["reason"] == "exited"


def test_stop_asks_with_sigterm_first(start_emulator: StartEmulator, tmp_path: Path) -> None:
    note = tmp_path / "note"
    emulator = start_emulator(agents=[scripted_agent(env={"SIGTERM_NOTE": str(note)})], stop_grace_s=30)
    session_id = new_session_id()
    emulator.invoke(session_id)
    emulator.stop(session_id)
    assert note.read_text() == "asked politely"


def test_stop_kills_what_ignores_sigterm(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(stop_grace_s=0.3)
    session_id = new_session_id()
    pid = emulator.invoke(session_id, do="ignore_sigterm")["pid"]
    emulator.stop(session_id)
    assert not alive(pid)


def test_stop_breaks_a_call_in_flight(emulator: Emulator) -> None:
    session_id = new_session_id()
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(emulator.invoke, session_id, do="hang")
        log = emulator.state_dir / "sessions" / session_id / "container.log"
        until(lambda: log.exists() and "invoked" in log.read_text(), "the container is called")
        emulator.stop(session_id)
        with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="stop"):
            hanging.result(30)


def test_stop_of_a_session_that_still_starts_ends_it(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(agents=[scripted_agent(cold_start_delay_s=60)])
    session_id = new_session_id()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(emulator.invoke, session_id)
        until(lambda: emulator.active(session_id), "the session starts")
        emulator.stop(session_id)
        with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="stop"):
            waiting.result(30)


def test_a_stop_sent_again_with_its_client_token_gets_the_same_answer(emulator: Emulator) -> None:
    session_id = new_session_id()
    emulator.invoke(session_id)
    call = {"agentRuntimeArn": ARN, "runtimeSessionId": session_id, "clientToken": new_session_id()}
    answers = [emulator.client.stop_runtime_session(**call) for _ in range(2)]
    assert [a["statusCode"] for a in answers] == [200, 200]


def test_the_container_gets_the_agents_environment_and_the_callers_headers(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(agents=[scripted_agent(env={"COLOUR": "green"}, qualifiers=["prod"])])
    session_id = new_session_id()
    answer = emulator.client.invoke_agent_runtime(
        agentRuntimeArn=ARN, runtimeSessionId=session_id, payload=b'{"do": "echo"}', qualifier="prod",
        contentType="application/json", accept="application/json", mcpSessionId="mcp-1", runtimeUserId="user-1",
        mcpProtocolVersion="2025-06-18", traceId="Root=1-abc", traceParent="00-1-2-01", traceState="a=b",
        baggage="k=v",
    )  # fmt: skip
    with closing(answer["response"]) as body:
        seen = json.loads(body.read())
    sent = {
        "content-type": "application/json", "accept": "application/json", "mcp-session-id": "mcp-1",
        "mcp-protocol-version": "2025-06-18", "x-amzn-bedrock-agentcore-runtime-user-id": "user-1",
        "x-amzn-trace-id": "Root=1-abc", "traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "k=v",
        "x-amzn-bedrock-agentcore-runtime-session-id": session_id,
    }  # fmt: skip
    assert {name: seen["headers"].get(name) for name in sent} == sent
    assert seen["env"]["COLOUR"] == "green"
    assert str(AGENTS) in seen["env"]["PYTHONPATH"].split(os.pathsep)
    assert not [name for name in seen["env"] if name.startswith("ROLLWAY_EMULATOR_") and not name.endswith("_SESSION")]
    assert answer["runtimeSessionId"] == session_id
    assert answer["mcpSessionId"] == "mcp-of-the-container"
    assert answer["traceId"] == "Root=1-abc"
    assert "x-not-passed-on" not in answer["ResponseMetadata"]["HTTPHeaders"]


def test_what_the_container_prints_is_in_its_sessions_log(emulator: Emulator) -> None:
    session_id = new_session_id()
    pid = emulator.invoke(session_id, mark="in-the-log")["pid"]
    log = emulator.state_dir / "sessions" / session_id / "container.log"
    until(lambda: "in-the-log" in log.read_text(), "the print is in the log")
    assert f"container {pid} serves" in log.read_text()
    view = emulator.active(session_id)
    assert view is not None
    assert Path(view["log"]) == log.resolve()
    assert (view["pid"], view["state"], view["arn"]) == (pid, "ready", ARN)
    emulator.stop(session_id)
    assert log.exists()


def test_a_copied_source_is_each_sessions_own(start_emulator: StartEmulator, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "scripted_agent.py").write_bytes((AGENTS / "scripted_agent.py").read_bytes())
    emulator = start_emulator(agents=[scripted_agent(cwd=str(source), copy_source=True)])
    one, two = new_session_id(), new_session_id()
    emulator.invoke(one, do="write", name="of-one")
    assert emulator.invoke(one)["files"] == ["of-one", "scripted_agent.py"]
    assert emulator.invoke(two)["files"] == ["scripted_agent.py"]
    assert [p.name for p in source.iterdir()] == ["scripted_agent.py"]


def test_a_caller_that_leaves_no_longer_keeps_the_session_busy(emulator: Emulator) -> None:
    session_id = new_session_id()
    emulator.invoke(session_id)
    _invoke_and_leave(emulator, session_id)
    until(lambda: (emulator.active(session_id) or {})["calls_in_flight"] == 0, "the call is given up")
    emulator.stop(session_id)


def _invoke_and_leave(emulator: Emulator, session_id: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", emulator.service.port, timeout=30)
    headers = {"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": session_id}
    connection.request("POST", f"/runtimes/{ARN}/invocations", b'{"do": "hang"}', headers)
    until(lambda: (emulator.active(session_id) or {})["calls_in_flight"] == 1, "the call is in flight")
    connection.close()
