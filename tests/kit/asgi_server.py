"""Any ASGI app on a real socket, on the test's own event loop, its lifespan run outside uvicorn.

A start-up failure is then the app's own exception, not a log line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from tests.kit.deadlines import eventually


@asynccontextmanager
async def serving(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """The base URL of ``app``, served until the block ends."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    # A client gives up an idle connection after 5 s: a server that did so as well might close one just taken.
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=5, timeout_keep_alive=75
    )
    server = uvicorn.Server(config)
    with sock:
        async with app.router.lifespan_context(app):
            # `serve()` would take over the test process's signal handlers.
            running = asyncio.create_task(server._serve([sock]))
            try:
                await eventually(lambda: server.started or running.done(), "the server to start")
                yield f"http://{host}:{sock.getsockname()[1]}"
            finally:
                server.should_exit = True
                await running
