"""Rate and quota: what one emulator refuses, and that invoke and stop share the rate."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.emulator.conftest import StartEmulator
from tests.emulator.emulator_under_test import OTHER_ARN, Emulator, new_session_id, scripted_agent
from tests.kit.deadlines import until


def test_invoke_and_stop_spend_one_rate(start_emulator: StartEmulator) -> None:
    """A burst of four: two invokes and one stop leave one call; the fifth, of either kind, is throttled."""
    emulator = start_emulator(tps=0.001, burst=4)
    session_id = new_session_id()
    emulator.invoke(session_id)
    emulator.invoke(session_id)
    emulator.stop(session_id)
    with pytest.raises(emulator.client.exceptions.ResourceNotFoundException):
        emulator.stop(session_id)
    for refused in (emulator.invoke, emulator.stop):
        with pytest.raises(emulator.client.exceptions.ThrottlingException) as caught:
            refused(session_id)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429


def test_the_rate_comes_back_with_time(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(tps=5, burst=1)
    session_id = new_session_id()
    emulator.invoke(session_id)

    def passes() -> bool:
        try:
            emulator.invoke(session_id)
        except emulator.client.exceptions.ThrottlingException:
            return False
        return True

    begin, passed = time.monotonic(), 0
    while passed < 10:
        until(passes, "the bucket holds a token again")
        passed += 1
    # Ten tokens at five a second; the first may have been there already.
    assert time.monotonic() - begin >= 9 / 5 - 0.05


def test_each_runtime_has_a_rate_of_its_own_and_refused_calls_cost_nothing(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(agents=[scripted_agent(), scripted_agent(OTHER_ARN)], tps=0.001, burst=1)
    with pytest.raises(emulator.client.exceptions.ValidationException):
        emulator.invoke("too-short")
    emulator.invoke(new_session_id())
    with pytest.raises(emulator.client.exceptions.ThrottlingException):
        emulator.invoke(new_session_id())
    emulator.arn = OTHER_ARN
    emulator.invoke(new_session_id())


def test_past_the_session_quota_only_known_sessions_are_served(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(max_sessions=2)
    one, two, three = (new_session_id() for _ in range(3))
    emulator.invoke(one)
    emulator.invoke(two)
    with pytest.raises(emulator.client.exceptions.ServiceQuotaExceededException) as caught:
        emulator.invoke(three)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 402
    assert emulator.invoke(one)["calls"] == 2
    emulator.stop(two)
    assert emulator.invoke(three)["calls"] == 1


def _idle(start_emulator: StartEmulator, **changes: float) -> Emulator:
    # A ping that is given up would count as idle, and a container may be held up for longer than the idle time.
    return start_emulator(**{"idle_timeout_s": 1.0, "ping_interval_s": 0.1, "ping_timeout_s": 30.0, **changes})


def test_an_idle_session_is_ended_with_all_its_processes(start_emulator: StartEmulator) -> None:
    emulator = _idle(start_emulator)
    session_id = new_session_id()
    before = emulator.invoke(session_id)
    assert emulator.wait_ended(session_id)["reason"] == "idle"
    assert emulator.invoke(session_id)["pid"] != before["pid"]


def test_healthy_busy_keeps_a_session_alive_and_healthy_lets_it_go(start_emulator: StartEmulator) -> None:
    emulator = _idle(start_emulator)
    busy, other = new_session_id(), new_session_id()
    emulator.invoke(busy, do="ping", status="HealthyBusy")
    # The other session's end is the clock: by then the busy one, called first, would have been idle too.
    emulator.invoke(other)
    emulator.wait_ended(other)
    view = emulator.active(busy)
    assert view is not None
    assert (view["state"], view["ping"]) == ("ready", "HealthyBusy")
    emulator.invoke(busy, do="ping", status="Healthy")
    assert emulator.wait_ended(busy)["reason"] == "idle"


def test_a_call_in_flight_is_not_idle(start_emulator: StartEmulator, tmp_path: Path) -> None:
    emulator = _idle(start_emulator, idle_timeout_s=0.3)
    session_id, other = new_session_id(), new_session_id()
    gate = tmp_path / "gate"
    answer = emulator.client.invoke_agent_runtime(
        agentRuntimeArn=emulator.arn,
        runtimeSessionId=session_id,
        payload=f'{{"do": "stream", "gates": ["{gate}"]}}'.encode(),
    )
    emulator.invoke(other)
    emulator.wait_ended(other)
    assert emulator.active(session_id) is not None
    gate.touch()
    with closing(answer["response"]) as body:
        assert body.read() == b"data: 0\n\n"
    assert emulator.wait_ended(session_id)["reason"] == "idle"


def test_the_lifetime_ends_a_session_that_is_busy(start_emulator: StartEmulator) -> None:
    """By its own word and by a call in flight, which is told why."""
    emulator = start_emulator(
        agents=[scripted_agent(env={"PING": "HealthyBusy"})], lifetime_s=1.5, ping_interval_s=0.1, ping_timeout_s=30
    )
    session_id = new_session_id()
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="lifetime"):
        emulator.invoke(session_id, do="hang")
    ended = emulator.wait_ended(session_id)
    assert (ended["reason"], ended["ping"]) == ("lifetime", "HealthyBusy")


def test_a_container_that_keeps_silent_is_given_up(start_emulator: StartEmulator) -> None:
    emulator = start_emulator(request_timeout_s=0.5)
    with pytest.raises(emulator.client.exceptions.RuntimeClientError, match="no answer"):
        emulator.invoke(new_session_id(), do="hang")
