"""A real emulator process with the scripted agent, and the real SDK as its client."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.kit.deadlines import until
from tests.kit.services import Service, Services

AGENTS = Path(__file__).parent / "agents"
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/scripted-a1b2c3"
OTHER_ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/other-d4e5f6"


def new_session_id() -> str:
    return str(uuid.uuid4())


def scripted_agent(arn: str = ARN, **changes: Any) -> dict[str, Any]:
    """An entry of the agents file."""
    return {"arn": arn, "command": ["{python}", "{cwd}/scripted_agent.py"], "cwd": str(AGENTS), **changes}


@contextmanager
def sdk_client(url: str, read_timeout: float = 60) -> Iterator[Any]:
    """The SDK's client with retries off, so that calls can be counted, and its own checks off, so that ours are met."""
    config = Config(
        retries={"max_attempts": 0}, parameter_validation=False, read_timeout=read_timeout, max_pool_connections=32
    )
    client = boto3.session.Session().client(
        "bedrock-agentcore", region_name="us-west-2", endpoint_url=url, config=config
    )
    assert client.exceptions.RuntimeClientError  # made now: two threads that ask first would get classes of their own
    try:
        yield client
    finally:
        client.close()


@dataclass
class Emulator:
    service: Service
    client: Any
    state_dir: Path
    arn: str = ARN

    def invoke(self, session_id: str, **wish: Any) -> Any:
        """The agent's JSON answer."""
        payload = json.dumps(wish).encode()
        answer = self.client.invoke_agent_runtime(
            agentRuntimeArn=self.arn, runtimeSessionId=session_id, payload=payload, contentType="application/json"
        )
        with closing(answer["response"]) as body:
            return json.loads(body.read())

    def stop(self, session_id: str) -> Any:
        return self.client.stop_runtime_session(agentRuntimeArn=self.arn, runtimeSessionId=session_id)

    def admin(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.service.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                raw = answer.read()
                return answer.status, json.loads(raw) if raw else None
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.loads(e.read())

    def set_chaos(self, **switches: Any) -> None:
        status, answer = self.admin("PUT", f"/_emulator/chaos/{urllib.parse.quote(self.arn, safe='')}", switches)
        assert status == 200, answer

    def active(self, session_id: str) -> dict[str, Any] | None:
        """The living session's view, None when it has none."""
        _, listed = self.admin("GET", "/_emulator/sessions")
        return next((s for s in listed["sessions"] if s["session_id"] == session_id), None)

    def wait_ended(self, session_id: str, within_s: float = 30.0) -> dict[str, Any]:
        """The view of the session once it has ended."""

        def ended() -> dict[str, Any] | None:
            _, listed = self.admin("GET", "/_emulator/sessions")
            return next((s for s in listed["ended"] if s["session_id"] == session_id), None)

        found: dict[str, Any] = until(ended, f"session {session_id} ends", within_s)
        return found


@contextmanager
def open_emulator(
    services: Services, folder: Path, *, agents: list[dict[str, Any]] | None = None, **settings: Any
) -> Iterator[Emulator]:
    """An emulator on a free port; a rate so high that only tests of the rate meet it."""
    agents_file = folder / f"agents-{uuid.uuid4().hex}.json"
    agents_file.write_text(json.dumps({"agents": agents or [scripted_agent()]}))
    chosen = {"agents": agents_file, "state_dir": folder / "state", "tps": 10_000, "burst": 10_000, **settings}
    env = {f"ROLLWAY_EMULATOR_{name.upper()}": str(value) for name, value in chosen.items()}
    service = services.start("emulator", ["-m", "rollway_emulator"], env=env)
    with sdk_client(service.url) as client:
        yield Emulator(service, client, folder / "state")


def alive(pid: int) -> bool:
    """A process that exists and is no zombie."""
    if sys.platform != "linux":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_dead(pids: list[int], within_s: float = 30.0) -> None:
    until(lambda: not any(alive(pid) for pid in pids), f"processes {pids} are gone", within_s)
