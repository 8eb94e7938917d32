"""The floor that every machine has: a Python process that passes bytes on both ways and looks at none of them.

    python -m benchmarks.gateway.relay --port 0 --to 127.0.0.1:9000

A client's connection gets one of its own upstream. Of a request only the first line is touched: ``/sessions/x`` is cut
off its path, as a gateway would.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import cast

import uvloop


class _Side(asyncio.Protocol):
    """One of two joined connections: what arrives here is written there."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if self.waiting:
            self.transport.writelines(self.waiting)
            self.waiting = []

    def pass_on(self, data: bytes) -> None:
        if self.transport is None:
            self.waiting.append(data)
        else:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.pass_on(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Agent(_Side):
    def __init__(self, host: str, port: int, tasks: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._to = (host, port)
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.other = _Side()
        self.other.other = self
        task = asyncio.get_running_loop().create_task(self._connect(self.other))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, upstream: _Side) -> None:
        await asyncio.get_running_loop().create_connection(lambda: upstream, *self._to)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        if data.startswith(b"POST /sessions/"):
            data = b"POST " + data[data.find(b"/v1/") :]
        self.other.pass_on(data)


async def serve(port: int, host: str, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tasks: set[asyncio.Task[None]] = set()
    server = await loop.create_server(lambda: _Agent(host, upstream, tasks), "127.0.0.1", port, backlog=4096)
    await stop.wait()
    server.close()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    chosen = parser.parse_args()
    host, _, port = chosen.to.rpartition(":")
    uvloop.run(serve(chosen.port, host, int(port)))


if __name__ == "__main__":
    main()
