"""moto's S3 API in one process, with its requests counted by method and by who asked: ``python -m … PORT``.

GET /_counts answers ``{"<method> <agent|dispatcher>": n}``; whoever calls itself ``sleepers`` is an agent.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class Counting:
    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_counts":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        who = "agent" if "sleepers" in environ.get("HTTP_USER_AGENT", "") else "dispatcher"
        method = environ["REQUEST_METHOD"]
        if method == "GET" and "list-type" in environ.get("QUERY_STRING", ""):
            method = "LIST"
        self._counts[f"{method} {who}"] += 1
        return self._app(environ, start_response)


if __name__ == "__main__":
    app = Counting(DomainDispatcherApplication(create_backend_app))
    make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True).serve_forever()
