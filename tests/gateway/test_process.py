"""The gateway as a process: starts, serves, stops cleanly, refuses wrong settings by name."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollway_gateway.__main__ import main
from rollway_gateway.settings import GatewaySettings
from tests.kit.deadlines import eventually
from tests.kit.idle_connection import idle_connection
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import write_model
from tests.kit.services import Services

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_it_serves_and_a_call_in_flight_outlives_the_stop(services: Services, engine: ScriptedEngine) -> None:
    """SIGTERM: no new connection, the call in flight is answered, exit status 0."""
    gateway = await services.start_async(
        "gateway", ["-m", "rollway_gateway", "--worker", engine.url],
        env={"ROLLWAY_GATEWAY_PORT": "0", "ROLLWAY_GATEWAY_DRAIN_S": "60"},
    )  # fmt: skip
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http, idle_connection(gateway.url) as closed:

        async def healthy() -> bool:
            return bool((await http.get("/health/workers")).json()["healthy"])

        await eventually(healthy, "the worker given on the command line is healthy")
        hold = asyncio.Event()
        engine.script(Reply("late", hold=hold))
        asking = asyncio.create_task(http.post("/sessions/s/v1/chat/completions", json={"messages": HI}))
        await eventually(lambda: engine.active, "a call in flight")
        gateway.process.send_signal(signal.SIGTERM)
        await eventually(closed.is_set, "it has begun to stop")
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")
        hold.set()
        assert (await asking).json()["choices"][0]["message"]["content"] == "late"
    assert await asyncio.to_thread(gateway.wait, 60) == 0


async def test_a_call_that_does_not_end_is_cancelled_at_the_stop(services: Services, engine: ScriptedEngine) -> None:
    gateway = await services.start_async(
        "gateway", ["-m", "rollway_gateway", "--worker", engine.url, "--port", "0"],
        env={"ROLLWAY_GATEWAY_DRAIN_S": "0"},
    )  # fmt: skip
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:

        async def healthy() -> bool:
            return bool((await http.get("/health/workers")).json()["healthy"])

        await eventually(healthy, "the worker is healthy")
        engine.script(Reply("late", hold=asyncio.Event()))
        asking = asyncio.create_task(http.post("/sessions/s/v1/chat/completions", json={"messages": HI}))
        await eventually(lambda: engine.active, "a call in flight")
        gateway.process.send_signal(signal.SIGINT)
        with pytest.raises(httpx.HTTPError):
            (await asking).raise_for_status()
    assert await asyncio.to_thread(gateway.wait, 60) == 0
    await eventually(lambda: not engine.active, "the engine's generation is cancelled")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "many"),
        ("PUBLIC_URL", "ftp://x"),
        ("WORKERS", "http://ok,nonsense"),
        ("MAX_ATTEMPTS", "0"),
        ("KEY_SECRET", "short"),
        ("HEALTH_INTERVAL_S", "-1"),
        ("LOG_LEVEL", "loud"),
        ("MODE", "exactly"),
        ("TOKENIZER", "/no/such/folder"),
    ],
)
def test_a_wrong_setting_refuses_to_start_and_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"ROLLWAY_GATEWAY_{name}", value)
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert f"ROLLWAY_GATEWAY_{name}" in capsys.readouterr().err


def test_certify_says_what_a_template_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0 for exact, 1 for mirror, 2 for no folder."""
    for folder, status, said in (
        (write_model(tmp_path / "model"), 0, "model: exact mode"),
        (tmp_path, 1, "mirror mode"),
        (tmp_path / "none", 2, "is not a folder"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["certify", str(folder)])
        printed = capsys.readouterr()
        assert (stopped.value.code, said in printed.out + printed.err) == (status, True)


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = "".join(capsys.readouterr().out.split())
    assert all(f"ROLLWAY_GATEWAY_{name.upper()}" in shown for name in GatewaySettings.model_fields)


def test_a_taken_port_refuses_to_start(services: Services) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = services.spawn("gateway", ["-m", "rollway_gateway", "--port", str(port)])
        assert refused.wait(60) == 2
        assert f"cannot bind 127.0.0.1:{port}" in refused.logs()
