"""The app as a process: PORT and HOST, SIGTERM and SIGINT while agents run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.ports import HeldPort
from tests.shim.conftest import Bucket
from tests.shim.servers import DEADLINE_S, Client, Listener, wait_for

ROOT = Path(__file__).parents[2]
AGENT = Path(__file__).parent / "agents" / "waiting_agent.py"


class Process:
    """An agent's process with its output as it comes."""

    def __init__(self, port: int, **env: str) -> None:
        self.client = Client(f"http://127.0.0.1:{port}")
        self.popen = subprocess.Popen(
            [sys.executable, str(AGENT)],
            env={**os.environ, "PORT": str(port), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout
        with self.popen.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())

    def end(self) -> int:
        if self.popen.poll() is None:
            try:
                self.popen.wait(DEADLINE_S)
            finally:
                self.popen.kill()
        self._reader.join()
        return self.popen.returncode


@contextmanager
def process(**env: str) -> Iterator[Process]:
    with HeldPort() as port:
        it = Process(port.number, **env)
        try:
            wait_for("the agent serves", lambda: it.client.answers() or it.popen.poll() is not None)
            assert it.popen.poll() is None, "\n".join(it.lines)
            yield it
        finally:
            if it.popen.poll() is None:
                it.popen.kill()
            it.end()


@pytest.mark.parametrize(
    ("kind", "deaf", "sign"),
    [("async", False, signal.SIGTERM), ("async", True, signal.SIGTERM), ("sync", False, signal.SIGTERM),
     ("async", False, signal.SIGINT)],
)  # fmt: skip
def test_a_signal_saves_every_running_rollout_as_cancelled(
    kind: str, deaf: bool, sign: signal.Signals, bucket: Bucket, listener: Listener
) -> None:
    """Within the grace time: saved, pushed as done, gone. An async agent unwinds; no other can hold the process."""
    with process(KIND=kind, GRACE_S="20") as it:  # half of it for what is deaf, the other half to save
        config = bucket.rollout(report=listener.target())
        receipts = [it.client.invoke({"deaf": deaf, "_rollout": config})[1] for _ in range(1 if deaf else 3)]
        wait_for("all at work", lambda: it.lines.count("waiting") == len(receipts))
        it.popen.send_signal(sign)
        it.end()
        documents = [bucket.read(r["result_key"]) for r in receipts]
    for document in documents:
        assert document is not None
        assert (document["status_code"], document["stop_reason"]) == (500, "cancelled")
        assert "CancelledError" in document["traceback"] and document["payload"]["deaf"] is deaf
    assert it.lines.count("unwound") == (len(receipts) if kind == "async" and not deaf else 0)
    if kind == "sync":
        assert documents[0] and "in _wait_on_a_thread" in documents[0]["traceback"]
    assert listener.events().count("done") == len(receipts)


def test_a_shutdown_with_s3_away_ends_within_the_grace_time_and_says_so(bucket: Bucket) -> None:
    with HeldPort() as away, process(KIND="sync", GRACE_S="1", AWS_ENDPOINT_URL_S3=away.url) as it:
        it.client.invoke({"_rollout": bucket.rollout()})
        wait_for("at work", lambda: "waiting" in it.lines)
        it.popen.terminate()
        it.end()
    assert any("1 rollouts unsaved" in line for line in it.lines), "\n".join(it.lines)


def test_port_and_host_come_from_the_environment() -> None:
    """The same file on two ports at once, as a process per session needs it."""
    with process(HOST="127.0.0.1") as one, process(HOST="localhost") as two:
        assert one.client.ping() == two.client.ping() == "Healthy"
        assert one.client.url != two.client.url


@pytest.mark.parametrize(
    ("env", "named"),
    [({"PORT": "http"}, "PORT"), ({"PORT": "70000"}, "PORT"), ({"HOST": "x86_64-linux-gnu"}, "HOST")],
)
def test_a_wrong_port_or_host_refuses_to_start_and_is_named(env: dict[str, str], named: str) -> None:
    ended: Any = subprocess.run(
        [sys.executable, str(AGENT)], env={**os.environ, **env}, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"refusing to start: {named} must be")
