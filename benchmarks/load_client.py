"""A load client: raw HTTP/1.1 on keep-alive connections, each making one call after another until the calls run out.

It counts; it reads no JSON unless asked to keep the bodies. Bounded by the number of calls, a time-out per call and a
deadline for the whole: what is not begun by the deadline is not begun.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Call:
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"

    def request(self, host: str) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(self.body), self.body)


@dataclass
class LoadResult:
    """What one load came to. Seconds of `latencies` in the order of completion, answered calls only."""

    answered: Counter[int] = field(default_factory=Counter)
    """By status."""
    events: int = 0
    """``data:`` lines of streamed answers but for [DONE]."""
    reads: int = 0
    """Times bytes of a streamed answer's body arrived: fewer than events means that events came joined."""
    timeouts: int = 0
    lost: int = 0
    """Connections that broke during a call."""
    latencies: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def ok(self) -> int:
        return self.answered[200]

    @property
    def failed(self) -> int:
        return self.answered.total() - self.ok + self.timeouts + self.lost


class _Connection(asyncio.Protocol):
    def __init__(self, load: _Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._need = 0
        """Bytes of the whole answer; 0: unknown; -1: chunked."""
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._calling = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.next_call()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def next_call(self) -> None:
        assert self._transport is not None
        call = self._load.take()
        if call is None:
            self._transport.close()
            return
        loop = asyncio.get_running_loop()
        self._parts, self._size, self._need = [], 0, 0
        self._calling = True
        self._began = time.perf_counter()
        self._timer = loop.call_later(self._load.timeout_s, self._timed_out)
        self._transport.write(call)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if not self._need:
            head = b"".join(self._parts)
            at = head.find(b"\r\n\r\n")
            if at < 0:
                return
            lower = head[:at].lower()
            found = lower.find(b"content-length:")
            self._need = at + 4 + int(lower[found + 15 :].split(b"\r\n", 1)[0]) if found >= 0 else -1
        if self._need < 0:
            self._load.result.reads += 1
            if data.endswith(b"0\r\n\r\n") or self._tail().endswith(b"\r\n0\r\n\r\n"):
                self._done()
        elif self._size >= self._need:
            self._done()

    def _tail(self) -> bytes:
        return b"".join(self._parts[-4:])[-16:]

    def _done(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._calling = False
        answer, result = b"".join(self._parts), self._load.result
        result.latencies.append(time.perf_counter() - self._began)
        result.answered[int(answer[9:12])] += 1
        result.events += answer.count(b"data: {")
        if self._load.keeps:
            result.bodies.append(answer[answer.find(b"\r\n\r\n") + 4 :])
        self.next_call()

    def _timed_out(self) -> None:
        self._load.result.timeouts += 1
        self._calling = False
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._load.result.lost += self._calling
        self._load.gone(self)


class _Load:
    def __init__(self, calls: Iterator[bytes], *, timeout_s: float, until: float, keeps: bool) -> None:
        self.result = LoadResult()
        self.timeout_s = timeout_s
        self.keeps = keeps
        self.ended = asyncio.Event()
        self.open: set[_Connection] = set()
        self.replacements = 0
        self._calls = calls
        self._until = until
        self.out = False
        """No call is left."""

    def take(self) -> bytes | None:
        call = next(self._calls, None) if time.perf_counter() < self._until else None
        self.out |= call is None
        return call

    def gone(self, connection: _Connection) -> None:
        self.open.discard(connection)
        if not self.out:
            self.replacements += 1
        self.ended.set()


async def run_load(
    url: str, calls: Iterable[Call], *, in_flight: int, timeout_s: float = 60.0, deadline_s: float = 120.0,
    keeps: bool = False, ramp_s: float = 0.0,
) -> LoadResult:  # fmt: skip
    """Make the calls, ``in_flight`` at a time, and count.

    Args:
        timeout_s: a call that takes longer is given up, its connection closed and replaced.
        deadline_s: no call begins later.
        keeps: keep each answer's body, framing included.
        ramp_s: connections are opened evenly over so long.

    Raises:
        OSError: the server takes no connection.
        TimeoutError: the load did not end although every call's time was over.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    began = time.perf_counter()
    wire = (call.request(parts.netloc) for call in calls)
    load = _Load(wire, timeout_s=timeout_s, until=began + deadline_s, keeps=keeps)
    loop = asyncio.get_running_loop()
    over = loop.time() + deadline_s + timeout_s + 5

    async def connect() -> None:
        _, connection = await loop.create_connection(lambda: _Connection(load), host, port)
        load.open.add(connection)

    for n in range(in_flight):
        if load.out:
            break
        await connect()
        if (early := began + ramp_s * n / in_flight - time.perf_counter()) > 0:
            await asyncio.sleep(early)
    while True:
        load.ended.clear()
        missing, load.replacements = load.replacements, 0
        for _ in range(0 if load.out else missing):
            await connect()
        load.open = {c for c in load.open if c.is_open}
        if load.out and not load.open:
            break
        async with asyncio.timeout_at(over):
            await load.ended.wait()
    load.result.wall_s = time.perf_counter() - began
    return load.result


async def probe(
    url: str, path: str, *, every_s: float, timeout_s: float, stop: asyncio.Event
) -> tuple[list[float], int]:
    """GET ``path`` at an interval until ``stop``: seconds per answer, and how many had none in time."""
    latencies: list[float] = []
    missed = 0
    while not stop.is_set():
        result = await run_load(
            url, [Call(path, b"", method="GET")], in_flight=1, timeout_s=timeout_s, deadline_s=timeout_s
        )
        latencies += result.latencies
        missed += result.failed
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue
    return latencies, missed
