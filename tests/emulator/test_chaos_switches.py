"""The faults a test can order, and the admin routes that order them."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from botocore.exceptions import ReadTimeoutError

from tests.emulator.conftest import StartEmulator
from tests.emulator.emulator_under_test import (
    ARN,
    Emulator,
    alive,
    new_session_id,
    scripted_agent,
    sdk_client,
    wait_dead,
)
from tests.kit.deadlines import until


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> None:
    """Each test begins without chaos."""
    if "emulator" in request.fixturenames:
        request.getfixturevalue("emulator").set_chaos()


def test_throttle_hits_invoke_and_stop(emulator: Emulator) -> None:
    session_id = new_session_id()
    emulator.invoke(session_id)
    emulator.set_chaos(throttle={"probability": 1})
    for call in (emulator.invoke, emulator.stop):
        with pytest.raises(emulator.client.exceptions.ThrottlingException):
            call(session_id)
    emulator.set_chaos()
    assert emulator.invoke(session_id)["calls"] == 2
    emulator.stop(session_id)


def test_a_seed_repeats_the_same_faults(emulator: Emulator) -> None:
    session_id = new_session_id()

    def pattern() -> list[bool]:
        emulator.set_chaos(seed=11, throttle={"probability": 0.5})
        hits = []
        for _ in range(12):
            try:
                emulator.invoke(session_id)
                hits.append(False)
            except emulator.client.exceptions.ThrottlingException:
                hits.append(True)
        return hits

    first = pattern()
    assert pattern() == first
    assert len(set(first)) == 2


def test_fail_start_is_a_runtime_client_error_that_names_its_cause(emulator: Emulator) -> None:
    emulator.set_chaos(fail_start={})
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="fail_start"):
        emulator.invoke(session_id)
    emulator.set_chaos()
    assert emulator.invoke(session_id)["calls"] == 1
    emulator.stop(session_id)


def test_crash_loses_the_whole_container_after_its_time(start_emulator: StartEmulator, tmp_path: Path) -> None:
    """Counted from its readiness, when its family is there; whoever calls it meanwhile is told."""
    note = tmp_path / "family"
    agent = scripted_agent(env={"FAMILY_NOTE": str(note)}, chaos={"crash": {"after_s": 0.5}})
    emulator = start_emulator(agents=[agent])
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="crashed"):
        emulator.invoke(session_id, do="hang")
    pids = json.loads(note.read_text())
    assert len(pids) == 4
    wait_dead(pids)
    assert emulator.wait_ended(session_id)["reason"] == "crashed"


def test_never_answer_leaves_the_caller_to_its_own_timeout(start_emulator: StartEmulator) -> None:
    """Nothing is delivered, and stopping the session frees whoever still waits."""
    emulator = start_emulator(agents=[scripted_agent(chaos={"never_answer": {}})])
    session_id = new_session_id()
    with sdk_client(emulator.service.url, read_timeout=1) as impatient, pytest.raises(ReadTimeoutError):
        impatient.invoke_agent_runtime(agentRuntimeArn=ARN, runtimeSessionId=session_id, payload=b"{}")
    until(lambda: '"status": 499' in emulator.service.logs(), "the emulator has seen the caller leave")

    def waits() -> bool:
        view = emulator.active(session_id) or {}
        return (view.get("state"), view.get("calls_in_flight")) == ("ready", 1)

    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(emulator.invoke, session_id)
        until(waits, "only the patient call waits, of a container that could answer")
        emulator.stop(session_id)
        with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="stop"):
            patient.result(30)
    assert "invoked" not in (emulator.state_dir / "sessions" / session_id / "container.log").read_text()


def test_slow_start_delays_a_cold_start_only(emulator: Emulator) -> None:
    session_id = new_session_id()
    emulator.set_chaos(slow_start={"seconds": 1})
    begin = time.monotonic()
    emulator.invoke(session_id)
    assert time.monotonic() - begin >= 1
    emulator.set_chaos(slow_start={"seconds": 600})
    assert emulator.invoke(session_id)["calls"] == 2
    emulator.stop(session_id)


def test_a_lost_container_is_lost_at_once_with_all_its_processes(emulator: Emulator) -> None:
    session_id = new_session_id()
    pids = emulator.invoke(session_id, do="family")["pids"]
    assert emulator.admin("DELETE", f"/_emulator/sessions/{session_id}") == (204, None)
    assert not any(map(alive, pids))
    assert emulator.wait_ended(session_id)["reason"] == "killed"
    assert emulator.invoke(session_id)["calls"] == 1
    emulator.stop(session_id)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("DELETE", "/_emulator/sessions/nobody", None, 404),
        ("PUT", f"/_emulator/chaos/{quote(ARN, safe='')}x", {}, 404),
        ("GET", "/_emulator/chaos/nothing", None, 404),
        ("PUT", f"/_emulator/chaos/{quote(ARN, safe='')}", {"throtle": {}}, 422),
        ("PUT", f"/_emulator/chaos/{quote(ARN, safe='')}", {"throttle": {"probability": 1.5}}, 422),
        ("PUT", f"/_emulator/chaos/{quote(ARN, safe='')}", {"crash": {}}, 422),
        ("PUT", f"/_emulator/chaos/{quote(ARN, safe='')}", b"{", 422),
        ("PUT", f"/_emulator/chaos/{quote(ARN, safe='')}", b"[" + b" " * 70_000, 413),
        ("GET", "/_emulator/nowhere", None, 404),
        ("POST", "/_emulator/sessions", {}, 405),
    ],
)
def test_a_wrong_admin_call_is_a_problem(emulator: Emulator, method: str, path: str, body: object, status: int) -> None:
    code, problem = emulator.admin(method, path, body)
    assert (code, problem["status"]) == (status, status), problem
    assert problem["detail"]


def test_chaos_can_be_read_back(emulator: Emulator) -> None:
    switches = {"seed": 3, "crash": {"probability": 0.25, "after_s": 9.0}}
    emulator.set_chaos(**switches)
    assert emulator.admin("GET", f"/_emulator/chaos/{quote(ARN, safe='')}") == (200, switches)


def test_health_counts(start_emulator: StartEmulator) -> None:
    emulator = start_emulator()
    emulator.invoke(new_session_id())
    assert emulator.admin("GET", "/health") == (200, {"status": "ok", "agents": 1, "sessions": 1})
