"""Free ports for containers."""

from __future__ import annotations

import random
import socket


class NoFreePort(RuntimeError):
    """Every port of the range is taken."""


class PortRange:
    """Hands out ports that nothing listens on, each to one container at a time.

    The range should lie outside the system's ephemeral ports, or an outgoing connection could take a port between
    the check and the container's own bind. It begins at a random place, so that two emulators seldom meet.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._count = last - first + 1
        self._next = random.randrange(self._count)
        self._taken: set[int] = set()

    def acquire(self) -> int:
        """Raises:
        NoFreePort: all are held or used by others.
        """
        for _ in range(self._count):
            port = self._first + self._next
            self._next = (self._next + 1) % self._count
            if port not in self._taken and _is_free(port):
                self._taken.add(port)
                return port
        raise NoFreePort(f"no free port from {self._first} to {self._first + self._count - 1}")

    def release(self, port: int) -> None:
        self._taken.discard(port)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("0.0.0.0", port))  # asks whether any interface has it; never listens
        except OSError:
            return False
    return True
