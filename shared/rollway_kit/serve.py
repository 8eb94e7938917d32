"""Serving: we bind the socket, so the port is known before the first request and a taken port is a clear error."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from types import FrameType
from typing import Any

import structlog
import uvicorn

from rollway_kit.http_guard import GuardedProtocol
from rollway_kit.settings import ServiceSettings

log = structlog.get_logger()

ACCEPTS = 16
"""Connections taken in one iteration of the loop. libuv takes one for each descriptor that it listens on: of a thousand
that come at once, each would else wait for as many iterations as there are connections before it."""


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


def bind_or_refuse(host: str, port: int) -> socket.socket:
    """`bind`, or exit with status 2 naming the address."""
    try:
        return bind(host, port)
    except OSError as e:
        sys.stderr.write(f"refusing to start: cannot bind {host}:{port}: {e.strerror}\n")
        raise SystemExit(2) from e


def listeners(sock: socket.socket) -> list[socket.socket]:
    """`ACCEPTS` descriptors of one bound socket, itself the first: they share its address and its queue."""
    return [sock, *(sock.dup() for _ in range(ACCEPTS - 1))]


def url_of(sock: socket.socket, host: str) -> str:
    """Where a bound socket is reached, the host as it was set."""
    return f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"


def run(
    app: Any,
    settings: ServiceSettings,
    *,
    service: str,
    drain_s: int = 10,
    sock: socket.socket | None = None,
    admin: tuple[socket.socket, str] | None = None,
    only_admin: bool = False,
    **config: Any,
) -> None:
    """Serve until SIGINT or SIGTERM; in-flight requests get ``drain_s`` seconds.

    Args:
        sock: from `bind_or_refuse`, for an app that must know its port before it starts; None: bound here.
        admin: a second socket for the same app and its host; the app tells them apart by ``scope["server"]``.
        only_admin: other processes serve ``sock``.

    Exit status: 0 after a clean stop, 1 when the app's start-up fails, 2 when the address cannot be bound.
    """
    sock = sock or bind_or_refuse(settings.host, settings.port)
    also = {} if admin is None else {"admin_url": url_of(*admin)}
    log.info("listening", service=service, url=url_of(sock, settings.host), **also)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=GuardedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=drain_s,
            timeout_keep_alive=75,
            **config,
        )
    )
    # uvicorn raises the signal that stopped it once more when it is done; a clean stop is not a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    sockets = [*([] if only_admin else listeners(sock)), *([] if admin is None else [admin[0]])]
    try:
        with contextlib.ExitStack() as opened:
            for one in (sock, *sockets):
                opened.enter_context(one)
            server.run(sockets=sockets)
    except SystemExit as e:
        raise SystemExit(1 if e.code else 0) from e
    if not server.started:
        raise SystemExit(1)


def _stopped(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
