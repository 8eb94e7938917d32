"""The whole chain as real processes: S3, emulator, gateway, dispatcher, a scripted engine, an agent per session."""

from __future__ import annotations

import json
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollway_driver.client import DispatcherClient, GatewayClient
from rollway_local.stack import free_port
from rollway_wire.batch import AgentCoreRuntime, BatchRequest, Capture, Group, Limits
from rollway_wire.gateway import WorkerSpec
from tests.kit.deadlines import until
from tests.kit.object_storage import Bucket
from tests.kit.services import Service, Services

AGENTS = Path(__file__).parent / "agents"
ARN = "arn:aws:bedrock-agentcore:us-west-2:000000000000:runtime/caller"
DEADLINE_S = 400.0
"""For anything that only has to happen: six agents that start at once share two cores with other tests."""


@dataclass
class Chain:
    """Everything between a trainer and an engine; restartable piece by piece."""

    services: Services
    bucket: Bucket
    folder: Path
    emulator: Service
    gateway: Service
    dispatcher_env: dict[str, str]
    dispatcher: Service
    clients: list[Any] = field(default_factory=list)

    @property
    def diary(self) -> Path:
        return self.folder / "diary.jsonl"

    def runs(self) -> list[dict[str, Any]]:
        """One entry per time an agent was run."""
        return [json.loads(x) for x in self.diary.read_text().splitlines()] if self.diary.exists() else []

    def batches(self) -> DispatcherClient:
        client = DispatcherClient(self.dispatcher.url)
        self.clients.append(client)
        return client

    def trainer(self) -> GatewayClient:
        client = GatewayClient(self.gateway.url)
        self.clients.append(client)
        return client

    def engine(self, text: str) -> Service:
        """A scripted engine, as a process, that answers every call with ``text``."""
        engine = self.services.spawn(f"engine-{text}", ["-m", "tests.kit.scripted_engine", "--text", text])
        engine.url = until(lambda: engine.logs().strip(), "the scripted engine's address", DEADLINE_S)
        return engine

    def pool(self, name: str, engine: Service, policy_version: int = 0) -> None:
        with GatewayClient(self.gateway.url) as gateway:
            gateway.add_worker(WorkerSpec(url=engine.url), name)
            gateway.open_pool(name, policy_version)

    def request(
        self, pool: str, groups: int = 2, n: int = 2, limits: Limits | None = None, **payload: Any
    ) -> BatchRequest:
        return BatchRequest(
            experiment_id=pool,
            groups=[
                Group(group_id=f"g{g}", n=n, payload={"prompt": f"question {g}", "diary": str(self.diary), **payload})
                for g in range(groups)
            ],
            runtime=AgentCoreRuntime(agent_runtime_arn=ARN, endpoint_url=self.emulator.url),
            model_id="scripted",
            capture=Capture(pool=pool),
            limits=limits or Limits(rollout_timeout_s=DEADLINE_S, max_attempts=1),
        )

    def heard(self, session_id: str) -> bool:
        """The dispatcher has noted that the session's agent reports, and will notice when it falls silent."""
        with closing(
            sqlite3.connect(f"file:{self.dispatcher_env['ROLLWAY_DISPATCHER_STATE_PATH']}?mode=ro", uri=True)
        ) as db:
            return db.execute("SELECT reports FROM rollouts WHERE session_id = ?", (session_id,)).fetchone() == (1,)

    def restart_dispatcher(self) -> None:
        """Start it again on the same port and state after it was killed."""
        self.dispatcher = start_dispatcher(self.services, self.dispatcher_env)


def start_dispatcher(services: Services, env: dict[str, str]) -> Service:
    return services.start("dispatcher", ["-m", "rollway_dispatcher"], env=env)


@pytest.fixture
def container_env(s3: Bucket) -> dict[str, str]:
    """What an agent's container needs to reach S3."""
    return {
        "AWS_ENDPOINT_URL_S3": s3.endpoint_url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": s3.region,
    }


@pytest.fixture
def agent(container_env: dict[str, str]) -> dict[str, Any]:
    """The emulator's entry for the agent under test; a module may have another."""
    return {"command": [sys.executable, "{cwd}/caller.py"], "cwd": str(AGENTS), "env": container_env}


@pytest.fixture
def heartbeat_window_s() -> float:
    """Longer than a busy machine lets an agent be silent; tests of agents that die have a shorter one."""
    return 60.0


@pytest.fixture
def chain(
    services: Services, s3: Bucket, tmp_path: Path, agent: dict[str, Any], heartbeat_window_s: float
) -> Iterator[Chain]:
    agents = tmp_path / "agents.json"
    agents.write_text(json.dumps({"agents": [{"arn": ARN, **agent}]}))
    emulator = services.start(
        "emulator", ["-m", "rollway_emulator"],
        env={"ROLLWAY_EMULATOR_AGENTS": str(agents), "ROLLWAY_EMULATOR_STATE_DIR": str(tmp_path / "emulator")},
    )  # fmt: skip
    gateway = services.start("gateway", ["-m", "rollway_gateway"], env={"ROLLWAY_GATEWAY_PORT": "0"})
    env = {
        "ROLLWAY_DISPATCHER_PORT": str(free_port()),  # its own also while it is down
        "ROLLWAY_DISPATCHER_GATEWAY_URL": gateway.url,
        "ROLLWAY_DISPATCHER_S3_ENDPOINT_URL": s3.endpoint_url,
        "ROLLWAY_DISPATCHER_S3_BUCKET": s3.name,
        "ROLLWAY_DISPATCHER_REGION": "us-west-2",
        "ROLLWAY_DISPATCHER_STATE_PATH": str(tmp_path / "dispatcher.sqlite"),
        "ROLLWAY_DISPATCHER_HEARTBEAT_INTERVAL_S": "0.5",
        "ROLLWAY_DISPATCHER_HEARTBEAT_WINDOW_S": str(heartbeat_window_s),
    }
    made = Chain(services, s3, tmp_path, emulator, gateway, env, start_dispatcher(services, env))
    yield made
    for client in made.clients:
        client.close()


@pytest.fixture
def pool_name() -> Callable[[], str]:
    return lambda: f"p{uuid.uuid4().hex[:8]}"
