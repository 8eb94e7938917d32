"""Pushes: started, heartbeat, done; what a dispatcher that is slow, away or refusing does to a rollout (nothing)."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from rollway_shim import RolloutApp, reporter
from rollway_shim.reporter import Reporter
from rollway_wire.rollout import Report
from tests.kit.ports import HeldPort
from tests.shim.conftest import Bucket
from tests.shim.servers import DEADLINE_S, Listener, serving, wait_for


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that is slow to answer, as a busy machine makes it, has not failed: no push comes twice for it."""
    monkeypatch.setattr(reporter, "_TIMEOUT_S", DEADLINE_S)


def _app(agent: Any) -> RolloutApp:
    app = RolloutApp()
    app.rollout_entrypoint(agent)
    return app


def test_started_heartbeats_and_done_come_in_order_with_the_key(
    bucket: Bucket, listener: Listener, session_id: str
) -> None:
    """done names the object and its status, and comes last."""
    go = threading.Event()

    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        go.wait()
        return {"rewards": 1}

    with serving(_app(agent)) as client:
        payload = {"_rollout": bucket.rollout(report=listener.target(interval_s=0.05))}
        _, receipt = client.invoke(payload, session_id)
        wait_for("three heartbeats", lambda: listener.events().count("heartbeat") >= 3)
        go.set()
        wait_for("done", lambda: "done" in listener.events())
    events = listener.events()
    assert events == ["started", *["heartbeat"] * (len(events) - 2), "done"]
    assert {p.authorization for p in listener.pushes} == {"Bearer report-key-0123456789"}
    reports = [Report.model_validate(p.report) for p in listener.pushes]
    assert {r.session_id for r in reports} == {session_id}
    assert (reports[-1].status_code, reports[-1].result_key) == (200, receipt["result_key"])


def test_done_is_sent_only_after_the_object_is_written(bucket: Bucket, listener: Listener, session_id: str) -> None:
    found: list[Any] = []
    listener.on_push = lambda r: found.append(bucket.read(r["result_key"])) if r["event"] == "done" else None
    with serving(_app(lambda payload: {"rewards": 2})) as client:
        client.invoke({"_rollout": bucket.rollout(report=listener.target())}, session_id)
        wait_for("done", lambda: found)
    assert found[0]["rewards"] == 2


def test_an_agents_error_is_done_with_500_and_its_key(bucket: Bucket, listener: Listener) -> None:
    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no")

    with serving(_app(agent)) as client:
        _, receipt = client.invoke({"_rollout": bucket.rollout(report=listener.target())})
        done = wait_for("done", lambda: [p for p in listener.pushes if p.report["event"] == "done"])[0]
    assert (done.report["status_code"], done.report["result_key"]) == (500, receipt["result_key"])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_busy_agent_does_not_stop_the_heartbeats(is_async: bool, bucket: Bucket, listener: Listener) -> None:
    """An agent that spins in Python, on the agents' loop or a thread, leaves heartbeats and /ping alive."""
    stop = threading.Event()

    def spin(payload: dict[str, Any]) -> dict[str, Any]:
        while not stop.is_set():
            sum(range(1000))
        return {"rewards": 0}

    async def spin_async(payload: dict[str, Any]) -> dict[str, Any]:
        return spin(payload)

    with serving(_app(spin_async if is_async else spin)) as client:
        try:
            client.invoke({"_rollout": bucket.rollout(report=listener.target(interval_s=0.05))})
            wait_for("five heartbeats", lambda: listener.events().count("heartbeat") >= 5)
            assert client.ping() == "HealthyBusy"
        finally:
            stop.set()


def test_an_absent_dispatcher_is_warned_of_once_and_changes_nothing(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connection refused at each push: the result is saved all the same."""
    failed: list[str] = []
    push = Reporter._push

    def noted(self: Reporter, report: Report) -> Any:
        said = push(self, report)
        failed.append(f"{report.event} {said}")
        return said

    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        wait_for("five pushes", lambda: len(failed) >= 5)
        return {"rewards": 3}

    monkeypatch.setattr(Reporter, "_push", noted)
    with HeldPort() as nobody, caplog.at_level(logging.INFO), serving(_app(agent)) as client:
        target = {"url": nobody.url, "key": "k" * 20, "interval_s": 0.05}
        document = bucket.saved(client.invoke({"_rollout": bucket.rollout(report=target)})[1])
        wait_for("done is given up", lambda: failed.count("done failed") == reporter._DONE_ATTEMPTS)
    assert document["rewards"] == 3
    assert set(failed) == {"started failed", "heartbeat failed", "done failed"}
    warnings = [r.getMessage() for r in caplog.records if "could not be pushed" in r.getMessage()]
    assert len(warnings) == 1 and "The rollout goes on" in warnings[0]
    assert "k" * 20 not in caplog.text


def test_done_is_tried_again_when_the_dispatcher_stumbles(bucket: Bucket, listener: Listener) -> None:
    """A 503 is not an answer: done comes again until it is taken."""
    listener.answers = [204, 503, 429]

    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        wait_for("the push", listener.events)  # one that has ended before its first push sends done alone
        return {"rewards": 0}

    with serving(_app(agent)) as client:
        client.invoke({"_rollout": bucket.rollout(report=listener.target())})
        wait_for("three times done", lambda: listener.events().count("done") == 3)
    assert listener.events() == ["started", "done", "done", "done"]


@pytest.mark.parametrize("status", [401, 404, 410, 302])
def test_a_refusal_ends_the_pushes_and_not_the_rollout(status: int, bucket: Bucket, listener: Listener) -> None:
    """After 4xx (and a redirect, which is never followed) nothing more is pushed; the result is saved."""
    listener.status = status

    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        wait_for("the push", listener.events)
        return {"rewards": 4}

    with serving(_app(agent)) as client:
        receipt = client.invoke({"_rollout": bucket.rollout(report=listener.target(interval_s=0.01))})[1]
        assert bucket.saved(receipt)["rewards"] == 4
        wait_for("Healthy again", lambda: client.ping() == "Healthy")
    assert listener.events() == ["started"]
