"""The gateway as a process: starts, serves, stops cleanly, refuses wrong settings by name."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.services import Services

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_it_serves_and_a_call_in_flight_outlives_the_stop(services: Services, engine: ScriptedEngine) -> None:
    """SIGTERM: no new connection, the call in flight is answered, exit status 0."""
    gateway = await services.start_async(
        "gateway", ["-m", "rollway_gateway", "--worker", engine.url], env={"ROLLWAY_GATEWAY_PORT": "0"}
    )
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:

        async def healthy() -> bool:
            return bool((await http.get("/health/workers")).json()["healthy"])

        await eventually(healthy, "the worker given on the command line is healthy")
        hold = asyncio.Event()
        engine.script(Reply("late", hold=hold))
        asking = asyncio.create_task(http.post("/sessions/s/v1/chat/completions", json={"messages": HI}))
        await eventually(lambda: engine.active, "a call in flight")
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        hold.set()
        assert (await asking).json()["choices"][0]["message"]["content"] == "late"
    assert await asyncio.to_thread(gateway.process.wait, 30) == 0


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
    assert await asyncio.to_thread(gateway.process.wait, 30) == 0
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
    ],
)
def test_a_wrong_setting_refuses_to_start_and_is_named(name: str, value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollway_gateway"], env={**_environment(), f"ROLLWAY_GATEWAY_{name}": value},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"ROLLWAY_GATEWAY_{name}" in done.stderr


def test_help_names_every_setting() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollway_gateway", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "ROLLWAY_GATEWAY_IMPLICIT_SESSIONS" in done.stdout.replace("\n", "")


def _environment() -> dict[str, str]:
    import os

    return {k: v for k, v in os.environ.items() if not k.startswith("ROLLWAY_GATEWAY_")}
