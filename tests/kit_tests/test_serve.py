"""A service process: its port is known, its log is JSON without secrets, and it refuses or ends in an orderly way."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import urllib.request
from asyncio import Protocol, get_running_loop, sleep
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rollway_kit import logs, serve
from tests.kit.deadlines import until
from tests.kit.services import Service, Services

MODULE = ["-m", "tests.kit_tests.example_service"]


def lines(service: Service) -> list[dict[str, Any]]:
    """The log so far, but for a line that is still being written."""
    return [json.loads(line) for line in service.logs().rpartition("\n")[0].splitlines()]


def test_each_log_line_is_json_with_service_level_time_and_bound_ids(services: Services) -> None:
    service = services.start("example", MODULE)
    events = {e["event"]: e for e in lines(service)}  # it is healthy, so the route has logged
    assert all({"service", "level", "timestamp"} <= e.keys() and e["service"] == "example" for e in events.values())
    assert events["looked"]["rollout_id"] == "b1/g1/0"
    assert events["from a thread"]["level"] == events["from the standard library"]["level"] == "warning"
    assert events["listening"]["url"] == service.url


def test_secrets_do_not_reach_the_log(services: Services) -> None:
    service = services.start("example", MODULE)
    looked = next(e for e in lines(service) if e["event"] == "looked")
    assert looked["api_key"] == looked["authorization"] == "[redacted]"
    assert "secret" not in service.logs()


def test_an_exception_is_logged_on_one_line_with_its_traceback(services: Services) -> None:
    service = services.start("example", MODULE)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.request("GET", "/bug")
    assert connection.getresponse().status == 500
    connection.close()
    bug = until(lambda: [e for e in lines(service) if e["event"] == "unhandled_exception"], "the error is logged")[0]
    assert "ZeroDivisionError: seen in the log" in bug["exception"]


def test_the_log_level_is_kept_and_a_wrong_one_refused(services: Services) -> None:
    service = services.spawn("quiet", MODULE, env={"ROLLWAY_EXAMPLE_LOG_LEVEL": "shout"})
    assert service.wait() != 0
    assert "log level 'shout': choose debug, info, warning or error" in service.logs()
    with pytest.raises(ValueError, match="choose debug"):
        logs.configure("x", "shout")


def test_a_taken_port_is_a_clear_refusal(services: Services) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = services.spawn("example", MODULE, env={"ROLLWAY_EXAMPLE_PORT": str(port)})
        assert service.wait() == 2
    assert f"refusing to start: cannot bind 127.0.0.1:{port}: Address already in use" in service.logs()
    assert "Traceback" not in service.logs()


def test_connections_that_come_at_once_are_taken_many_in_an_iteration_of_the_loop() -> None:
    """libuv takes one for each descriptor: with one, the last of a thousand waits for a thousand iterations."""
    made = iterations = 0

    class Counted(Protocol):
        def connection_made(self, transport: Any) -> None:
            nonlocal made
            made += 1
            transport.abort()

    async def take(waiting: list[socket.socket]) -> None:
        nonlocal iterations
        with serve.bind("127.0.0.1", 0) as bound:
            listening = serve.listeners(bound)
            servers = [await get_running_loop().create_server(Counted, sock=s, backlog=1024) for s in listening]
            for _ in range(10 * serve.ACCEPTS):
                waiting.append(socket.create_connection(bound.getsockname()))
            while made < len(waiting):
                assert (iterations := iterations + 1) < 1000
                await sleep(0)
            for server in servers:
                server.close()
                await server.wait_closed()

    clients: list[socket.socket] = []
    try:
        uvloop.run(take(clients))
    finally:
        for client in clients:
            client.close()
    assert made == 10 * serve.ACCEPTS
    assert iterations <= 2 * 10


def test_a_service_listens_so(services: Services) -> None:
    service = services.start("example", MODULE)
    listening = f":{service.port:04X} 00000000:0000 0A "
    inode = next(line for line in Path("/proc/net/tcp").read_text().splitlines() if listening in line).split()[9]
    held = 0
    for fd in Path(f"/proc/{service.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of a connection that was closed since
            held += fd.readlink() == Path(f"socket:[{inode}]")
    assert held == serve.ACCEPTS


def test_an_address_that_is_not_ours_is_a_clear_refusal(services: Services) -> None:
    service = services.spawn("example", MODULE, env={"ROLLWAY_EXAMPLE_HOST": "no.such.host.invalid"})
    assert service.wait() == 2
    assert "refusing to start: cannot bind no.such.host.invalid" in service.logs()


def test_a_failed_start_exits_1_and_says_why(services: Services) -> None:
    service = services.spawn("example", MODULE, env={"BREAK_LIFESPAN": "1"})
    assert service.wait() == 1
    assert "the bucket is missing" in service.logs()


def test_sigterm_lets_requests_in_flight_end_and_closes_what_the_lifespan_opened(services: Services) -> None:
    service = services.start("example", MODULE)
    answers: list[bytes] = []

    def ask() -> None:
        with urllib.request.urlopen(f"{service.url}/slow", timeout=30) as response:
            answers.append(response.read())

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: "slow_began" in service.logs(), "the request to be in flight")
    assert service.stop() == 0
    asking.join(30)
    assert answers == [b'{"done":true}']
    assert any(e["event"] == "closed" for e in lines(service))


def test_a_killed_service_starts_again_under_the_same_address(services: Services) -> None:
    """Meanwhile nobody else is given its port, and who calls it is refused."""
    first = services.start("example", MODULE)
    first.kill()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", first.port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", first.port))
    second = services.start("example", MODULE, env={"ROLLWAY_EXAMPLE_PORT": str(first.port)})
    assert second.url == first.url
