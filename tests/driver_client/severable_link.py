"""`SeverableLink`: a TCP relay to a server whose connections a test can cut in the middle of anything."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

RESET = struct.pack("ii", 1, 0)


class SeverableLink:
    """Listens at ``url`` and relays to ``port``. `sever` resets every connection; new ones are taken as before."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def sever(self) -> None:
        for pair in list(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self.sever()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._pairs.add((near, far))
            self._spawn(self._relay, near, far)

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        self._pairs.discard((near, far))
                        return
                    other[ready].sendall(data)
        self._pairs.discard((near, far))


@contextlib.contextmanager
def severable_link(port: int) -> Iterator[SeverableLink]:
    link = SeverableLink(port)
    try:
        yield link
    finally:
        link.close()
