"""Fixtures of the dispatcher's tests: a scripted gateway, settings on a fresh bucket, batches of scripted agents."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import AGENTS, ARN, agent_pids, kill_all, process_runtime
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.object_storage import Bucket
from tests.kit.postgres_server import PostgresServer
from tests.kit.services import Service, Services


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They start up to a dozen processes each, and wait for what follows: a slow machine takes its time over that."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with ScriptedGateway() as made:
        yield made


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def state_path(tmp_path: Path) -> Iterator[Path]:
    """Where the dispatcher keeps its state; agents that outlive the test are killed."""
    path = tmp_path / "state" / "dispatcher.sqlite3"
    yield path
    kill_all(agent_pids(path))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def state(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of where the state lies: "sqlite", or "postgres" where a module asks for both with ``on_both``."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return {}
    server: PostgresServer = request.getfixturevalue("postgres")
    return {"database_url": server.new_database(), "lease_s": 1.0}


@pytest.fixture
def settings(s3: Bucket, gateway: ScriptedGateway, state_path: Path, state: dict[str, Any]) -> DispatcherSettings:
    return DispatcherSettings(
        **state,
        port=0,
        gateway_url=gateway.url,
        s3_endpoint_url=s3.endpoint_url,
        s3_bucket=s3.name,
        region=s3.region,
        state_path=state_path,
        allow_process_runtime=True,
        poll_interval_s=0.1,
        heartbeat_interval_s=0.2,
        heartbeat_window_s=120.0,
    )


@pytest.fixture
def noticing_silence(settings: DispatcherSettings) -> DispatcherSettings:
    """For tests of it. An agent that the machine just keeps waiting for a few seconds is not taken for dead."""
    return settings.model_copy(update={"heartbeat_window_s": 6.0})


@pytest.fixture
def apart(settings: DispatcherSettings) -> DispatcherSettings:
    """For several dispatchers of which none may take over from another that the machine keeps waiting for a while."""
    return settings.model_copy(update={"lease_s": 60.0})


@pytest.fixture
def taking_over(settings: DispatcherSettings) -> DispatcherSettings:
    """For several dispatchers of which one is killed: not before that, but soon after."""
    return settings.model_copy(update={"lease_s": 8.0})


@pytest.fixture
def batch(runs_dir: Path) -> Callable[..., dict[str, Any]]:
    """``batch([{payload}, …], n=…, **fields)``: a request whose agents are scripted by their payloads."""

    def make(payloads: list[dict[str, Any]], n: int = 1, **fields: Any) -> dict[str, Any]:
        groups = [
            {"group_id": f"g{i}", "n": n, "payload": {"runs": str(runs_dir), **p}} for i, p in enumerate(payloads)
        ]
        return {"groups": groups, "runtime": process_runtime(), "experiment_id": "exp", **copy.deepcopy(fields)}

    return make


@pytest.fixture
def emulator(services: Services, s3: Bucket, tmp_path: Path) -> Callable[..., Awaitable[Service]]:
    async def start(agent: dict[str, Any] | None = None, **settings: Any) -> Service:
        entry = {
            "arn": ARN, "command": ["{python}", str(AGENTS / "contract_agent.py")],
            "env": {"AWS_ENDPOINT_URL_S3": s3.endpoint_url}, **(agent or {}),
        }  # fmt: skip
        listed = tmp_path / "agents.json"
        await asyncio.to_thread(listed.write_text, json.dumps({"agents": [entry]}))
        env = {f"ROLLWAY_EMULATOR_{k.upper()}": str(v) for k, v in settings.items()}
        arguments = ["-m", "rollway_emulator", "--agents", str(listed), "--state-dir", str(tmp_path / "emulator")]
        return await services.start_async("emulator", arguments, env=env)

    return start
