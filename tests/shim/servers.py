"""Real servers for the shim's tests: the app under uvicorn, a listener for its pushes, and a client of the app."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import uvicorn

DEADLINE_S = 60.0
T = TypeVar("T")
SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"


def wait_for(what: str, look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """The first truthy answer of ``look``; AssertionError naming ``what`` when none comes in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if answer := look():
            return answer
        time.sleep(0.01)
    raise AssertionError(f"not within {deadline_s} s: {what}")


def block_the_loop(until: threading.Event) -> None:
    """What an async agent does that knows no better. Elsewhere in tests a blocking call on a loop is an error."""
    until.wait()


@dataclass
class Client:
    """Calls an app's /invocations and /ping."""

    url: str

    def invoke(self, payload: Any, session_id: str | None = None) -> tuple[int, Any]:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        headers = {"Content-Type": "application/json"} | ({SESSION_HEADER: session_id} if session_id else {})
        return self._call(urllib.request.Request(f"{self.url}/invocations", body, headers, method="POST"))

    def ping(self) -> str:
        status, body = self._call(urllib.request.Request(f"{self.url}/ping"))
        assert status == 200
        return str(body["status"])

    def answers(self) -> bool:
        try:
            return bool(self.ping())
        except OSError:
            return False

    @staticmethod
    def _call(request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)


@contextmanager
def serving(app: Any) -> Iterator[Client]:
    """``app`` under uvicorn on a free port, its lifespan included, stopped as SIGTERM stops it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            wait_for("the app serves", lambda: server.started or not thread.is_alive())
            assert server.started
            yield Client(f"http://127.0.0.1:{sock.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@dataclass
class Push:
    at: float
    """time.monotonic() seconds."""
    authorization: str | None
    report: dict[str, Any]


@dataclass
class Listener:
    """Takes pushes as the dispatcher would, answering ``answers`` in turn and then ``status``."""

    url: str = ""
    status: int = 204
    answers: list[int] = field(default_factory=list)
    on_push: Callable[[dict[str, Any]], None] | None = None
    pushes: list[Push] = field(default_factory=list)

    def events(self) -> list[str]:
        return [p.report["event"] for p in self.pushes]

    def target(self, interval_s: float = 60.0) -> dict[str, Any]:
        return {"url": self.url, "key": "report-key-0123456789", "interval_s": interval_s}


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if listener.on_push:
                listener.on_push(report)
            listener.pushes.append(Push(time.monotonic(), self.headers["Authorization"], report))
            self.send_response(listener.answers.pop(0) if listener.answers else listener.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    listener.url = f"http://127.0.0.1:{server.server_port}/v1/reports"
    try:
        yield listener
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
