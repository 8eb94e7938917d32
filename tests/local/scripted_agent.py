"""A scripted agent container for the local stack's tests: /ping, /invocations, and a process that tries to escape.

Standard library only. It starts a child in a session of its own, which nobody waits for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Container(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"status": "Healthy"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        escaped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        self._answer({"pid": os.getpid(), "escaped": escaped.pid, "s3": os.environ.get("AWS_ENDPOINT_URL_S3")})

    def _answer(self, body: dict[str, object]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Container).serve_forever()
