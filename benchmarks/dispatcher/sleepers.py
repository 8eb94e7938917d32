"""A stand-in for thousands of agent containers: one process that takes every invocation, sleeps, saves a result.

    python -m benchmarks.dispatcher.sleepers PORT

It keeps the shim's contract towards the dispatcher: a receipt at once; ``started``, heartbeats and ``done`` to the
address in ``_rollout``, each on a connection of its own, as the shim sends them; the result in S3 before ``done``. The
result says when the agent began to save it (``done_at``, Unix seconds). A payload's ``sleep_s`` says how long it
sleeps; ``pushes: false`` makes it an agent that never reports; ``together: n`` has it go on until n have run at once.
Sockets and timers alone, no library and no task an
agent: what it costs is taken from what is measured beside it.

GET /counts answers ``{"invocations": n, "together": n, "late_s": x}``: how many ever ran at once, and how far this
process itself has been behind its own timers, both at most.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import orjson
import uvloop

SESSION = b"x-amzn-bedrock-agentcore-runtime-session-id"
S3_CONNECTIONS = 32
LOOK_AGAIN_S = 1.0
"""Whether enough have run at once."""
CLOCK_S = 0.002
"""The loop's clock is this coarse: a timer may be early by it."""


def _request(method: str, url: str, body: bytes, key: str = "", *, close: bool) -> bytes:
    parts = urlsplit(url)
    head = f"{method} {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: sleepers\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    return (head + ("Connection: close\r\n\r\n" if close else "\r\n")).encode() + body


class Call(asyncio.Protocol):
    """One request on a connection of its own; the answer's status line is all that is read of it."""

    def __init__(self, raw: bytes, then: Callable[[bool], None]) -> None:
        self._raw, self._then, self._heard = raw, then, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._raw)

    def data_received(self, data: bytes) -> None:
        self._heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._then(self._heard[9:10] == b"2")


class Saver(asyncio.Protocol):
    """One of the connections to S3: a request after the other, as many as there are."""

    def __init__(self, waiting: deque[tuple[bytes, Callable[[bool], None]]], idle: list[Saver]) -> None:
        self._waiting, self._idle = waiting, idle
        self._then: Callable[[bool], None]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.next()

    def next(self) -> None:
        if not self._waiting:
            self._idle.append(self)
            return
        raw, self._then = self._waiting.popleft()
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        assert data.endswith(b"\r\n\r\n"), "the answer to a put is a head alone"
        self._then(data[9:10] == b"2")
        self.next()


class Agent:
    """One rollout: timers and calls."""

    def __init__(self, sleepers: Sleepers, session_id: str, payload: dict[str, Any], key: str) -> None:
        self._all, self._session_id, self._key = sleepers, session_id, key
        self._config = payload["_rollout"]
        self._report = self._config.get("report") if payload.get("pushes", True) else None
        self._until = sleepers.loop.time() + payload["sleep_s"]
        self._together: int = payload.get("together", 0)
        if self._report:
            self._beat("started")
        else:
            self._rest(payload["sleep_s"])

    def _rest(self, seconds: float) -> None:
        self._due = self._all.loop.time() + seconds
        self._all.loop.call_at(self._due, self._wake)

    def _wake(self) -> None:
        self._all.late_s = max(self._all.late_s, self._all.loop.time() - self._due)
        if self._report is not None and self._all.loop.time() < self._until - CLOCK_S:
            self._beat("heartbeat")
        elif self._all.together >= self._together:
            self._save()
        elif self._report is None:
            self._rest(LOOK_AGAIN_S)
        else:
            self._until = self._all.loop.time() + self._report["interval_s"]
            self._beat("heartbeat")

    def _beat(self, event: str) -> None:
        self._push({"session_id": self._session_id, "event": event}, lambda _: None)
        self._rest(min(max(0.0, self._until - self._all.loop.time()), self._report["interval_s"]))

    def _push(self, body: dict[str, Any], then: Callable[[bool], None]) -> None:
        raw = _request("POST", self._report["url"], orjson.dumps(body), self._report["key"], close=True)
        self._all.call(self._report["url"], raw, then)

    def _save(self) -> None:
        result = {
            "status_code": 200, "stop_reason": "end_turn", "input_id": self._config["input_id"],
            "s3_bucket": self._config["s3_bucket"], "result_key": self._key, "payload": {}, "rewards": 1.0,
            "done_at": time.time(),
        }  # fmt: skip
        self._all.save(f"{self._config['s3_bucket']}/{self._key}", orjson.dumps(result), self._saved)

    def _saved(self, good: bool) -> None:
        assert good, "S3 did not take a result"
        done = {"session_id": self._session_id, "event": "done", "status_code": 200, "result_key": self._key}
        if self._report:
            self._push(done, self._told)
        else:
            self._told(True)

    def _told(self, good: bool) -> None:
        if good:
            del self._all.running[self._session_id]
        else:  # as the shim does
            self._all.loop.call_later(0.2, self._saved, True)


class Sleepers:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.running: dict[str, Agent] = {}
        self.invocations = self.together = 0
        self.late_s = 0.0
        self._s3 = os.environ["AWS_ENDPOINT_URL_S3"]
        self._savers, self._idle, self._waiting = 0, [], deque()  # type: ignore[var-annotated]
        self._calls: set[asyncio.Task[None]] = set()

    def call(self, url: str, raw: bytes, then: Callable[[bool], None]) -> None:
        """On a connection of its own; ``then(False)`` where there was none."""

        async def connect() -> None:
            try:
                await self.loop.create_connection(lambda: Call(raw, then), to.hostname, to.port)
            except OSError:
                then(False)

        to = urlsplit(url)
        task = self.loop.create_task(connect(), name="call")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def save(self, path: str, body: bytes, then: Callable[[bool], None]) -> None:
        self._waiting.append((_request("PUT", f"{self._s3}/{path}", body, close=False), then))
        if self._idle:
            self._idle.pop().next()
        elif self._savers < S3_CONNECTIONS:
            self._savers += 1
            to = urlsplit(self._s3)
            make = self.loop.create_connection(lambda: Saver(self._waiting, self._idle), to.hostname, to.port)
            task = self.loop.create_task(make, name="saver")  # type: ignore[arg-type]
            self._calls.add(task)  # type: ignore[arg-type]
            task.add_done_callback(self._calls.discard)  # type: ignore[arg-type]

    def answer(self, first: bytes, headers: dict[bytes, bytes], body: bytes) -> dict[str, Any]:
        if first.startswith(b"GET /ping"):
            return {"status": "HealthyBusy" if self.running else "Healthy"}
        if first.startswith(b"GET /counts"):
            return {"invocations": self.invocations, "together": self.together, "late_s": self.late_s}
        payload, session_id = orjson.loads(body), headers[SESSION].decode()
        config = payload["_rollout"]
        key = f"{config['exp_id']}/{config['input_id']}/{session_id}.json"
        self.invocations += 1
        if session_id not in self.running:
            self.running[session_id] = Agent(self, session_id, payload, key)
            self.together = max(self.together, len(self.running))
        return {"status": "processing", "s3_bucket": config["s3_bucket"], "result_key": key}


class Connection(asyncio.Protocol):
    """A caller's. Whole requests, one after the other; the dispatcher and the benchmark send no other."""

    def __init__(self, sleepers: Sleepers) -> None:
        self._sleepers, self._data = sleepers, b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, there, body = self._data.partition(b"\r\n\r\n")
        if not there:
            return
        first, *lines = head.split(b"\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(b": ") for line in lines)}
        if len(body) < int(headers.get(b"content-length", 0)):
            return
        self._data = b""
        said = json.dumps(self._sleepers.answer(first, headers, body)).encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        self._transport.write(answer % (len(said), said))
        if headers.get(b"connection") == b"close":
            self._transport.close()


async def main(port: int) -> None:
    sleepers = Sleepers()
    server = await sleepers.loop.create_server(lambda: Connection(sleepers), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
