"""A stand-in container: the AgentCore HTTP contract on $PORT with the standard library, doing what each payload says.

Payload ``{"do": …}``: ``echo`` (the default) tells what the container sees of itself; the others misbehave as named.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATE: dict[str, Any] = {"ping": os.environ.get("PING", "Healthy"), "calls": 0}
SLEEPER = "import time; time.sleep(600)"


class Container(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(f"{format % args}\n")

    def do_GET(self) -> None:
        self.send_json(200, {"status": STATE["ping"], "time_of_last_update": int(time.time())})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        STATE["calls"] += 1
        try:
            wish = json.loads(body)
        except ValueError:
            wish = {"do": "bytes"}
        print(f"invoked: {wish}")
        getattr(self, f"do_{wish.get('do', 'echo')}")(wish, body)

    def send_json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("mcp-session-id", "mcp-of-the-container")
        self.send_header("x-not-passed-on", "1")
        self.end_headers()
        self.wfile.write(data)

    def do_echo(self, wish: dict[str, Any], body: bytes) -> None:
        files = sorted(p.name for p in Path.cwd().iterdir())
        self.send_json(
            200,
            {
                "pid": os.getpid(),
                "calls": STATE["calls"],
                "cwd": str(Path.cwd()),
                "files": files,
                "env": dict(os.environ),
                "headers": {k.lower(): v for k, v in self.headers.items()},
                "received": wish,
            },
        )

    def do_bytes(self, wish: dict[str, Any], body: bytes) -> None:
        self.send_json(200, {"size": len(body), "content_type": self.headers.get("content-type")})

    def do_write(self, wish: dict[str, Any], body: bytes) -> None:
        for folder in (Path.cwd(), Path.home(), Path(os.environ["TMPDIR"])):
            (folder / wish["name"]).write_text(wish["name"])
        self.send_json(200, {"cwd": str(Path.cwd()), "home": str(Path.home()), "tmp": os.environ["TMPDIR"]})

    def do_family(self, wish: dict[str, Any], body: bytes) -> None:
        self.send_json(200, {"pids": family()})

    def do_ping(self, wish: dict[str, Any], body: bytes) -> None:
        STATE["ping"] = wish["status"]
        self.send_json(200, {"pid": os.getpid()})

    def do_fail(self, wish: dict[str, Any], body: bytes) -> None:
        self.send_json(wish.get("status", 500), {"error": "the agent says no"})

    def do_die(self, wish: dict[str, Any], body: bytes) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_die_inside(self, wish: dict[str, Any], body: bytes) -> None:
        """Promise a body, send half of it, be gone."""
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b'{"half":')
        self.wfile.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def do_hang(self, wish: dict[str, Any], body: bytes) -> None:
        time.sleep(600)

    def do_ignore_sigterm(self, wish: dict[str, Any], body: bytes) -> None:
        STATE["ignore"] = True
        self.send_json(200, {"pid": os.getpid()})

    def do_stream(self, wish: dict[str, Any], body: bytes) -> None:
        """Each event waits until the file the caller names for it exists, so a buffering proxy would hang."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, gate in enumerate(wish["gates"]):
            while not Path(gate).exists():
                time.sleep(0.01)
            event = f"data: {number}\n\n".encode()
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.flush()
        if wish.get("then") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.wfile.write(b"0\r\n\r\n")


def family() -> list[int]:
    """This process, a child, a grandchild, and a child that left the process group."""
    nested = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]);"
        "print(p.pid, flush=True); p.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True)
    escaped = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    return [os.getpid(), parent.pid, grandchild, escaped.pid]


def on_sigterm(number: int, frame: Any) -> None:
    if STATE.get("ignore"):
        return
    Path(os.environ.get("SIGTERM_NOTE", os.devnull)).write_text("asked politely")
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    if note := os.environ.get("FAMILY_NOTE"):  # before /ping can be answered
        Path(note).write_text(json.dumps(family()))
    print(f"container {os.getpid()} serves on {os.environ['PORT']}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Container).serve_forever()
