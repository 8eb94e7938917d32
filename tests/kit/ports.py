"""A port that stays its holder's while nobody listens there: what is killed and started again finds it free, and what
is to be refused is refused. Several workers run tests at once, and each connection of theirs takes a port, too.
Imports nothing of the project, as the shim's tests run where there is nothing else of it.
"""

from __future__ import annotations

import socket
from types import TracebackType

HOST = "127.0.0.1"


def hold(port: int = 0) -> socket.socket:
    """A socket bound to ``port`` (0: a free one) on loopback and not listening: connecting there is refused, binding to
    any port never gives this one away, and a server that names it, with SO_REUSEADDR as servers do, gets it. Close it
    to give it back.

    Raises:
        OSError: somebody has it.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock


class HeldPort:
    """`hold` of a free port, by its number; ``with`` or `close` gives it back."""

    def __init__(self) -> None:
        self._sock = hold()
        self.number: int = self._sock.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.number}"

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
