"""Serving: we bind the socket, so the port is known before the first request and a taken port is a clear error."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType
from typing import Any

import structlog
import uvicorn

from rollway_kit.settings import ServiceSettings

log = structlog.get_logger()


def bind(host: str, port: int) -> socket.socket:
    """A listening-ready TCP socket.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def bind_or_refuse(settings: ServiceSettings) -> socket.socket:
    """`bind` to the settings' address, or exit with status 2 naming it."""
    try:
        return bind(settings.host, settings.port)
    except OSError as e:
        sys.stderr.write(f"refusing to start: cannot bind {settings.host}:{settings.port}: {e.strerror}\n")
        raise SystemExit(2) from e


def run(
    app: Any,
    settings: ServiceSettings,
    *,
    service: str,
    drain_s: int = 10,
    sock: socket.socket | None = None,
    **config: Any,
) -> None:
    """Serve until SIGINT or SIGTERM; in-flight requests get ``drain_s`` seconds.

    ``sock``: from `bind_or_refuse`, for an app that must know its port before it starts; None: bound here.

    Exit status: 0 after a clean stop, 1 when the app's start-up fails, 2 when the address cannot be bound.
    """
    sock = sock or bind_or_refuse(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    log.info("listening", service=service, url=f"http://{host}:{sock.getsockname()[1]}")
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=drain_s,
            timeout_keep_alive=75,
            **config,
        )
    )
    # uvicorn raises the signal that stopped it once more when it is done; a clean stop is not a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    try:
        with sock:
            server.run(sockets=[sock])
    except SystemExit as e:
        raise SystemExit(1 if e.code else 0) from e
    if not server.started:
        raise SystemExit(1)


def _stopped(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
