"""A real `rollway up`, and everything that came from it, found again by a mark in its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from tests.kit.deadlines import until

ARN = "arn:aws:bedrock-agentcore:us-west-2:000000000000:runtime/scripted"
START_S = 240.0
END_S = 120.0


@dataclass
class RunningStack:
    """One `rollway up` process."""

    folder: Path
    output_name: str = "output.txt"
    mark: str = field(default_factory=lambda: f"/mark-{uuid.uuid4().hex}")
    """On the PATH of every process that comes from it: the one variable that even agents inherit."""
    process: subprocess.Popen[bytes] | None = None

    def spawn(self, *arguments: str, env: Mapping[str, str] | None = None, agents: bool = True) -> None:
        """Start it without waiting."""
        self.folder.mkdir(exist_ok=True)
        if agents:
            arguments = (*arguments, "--agents", str(self.agents_file()))
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollway_local", "up", "--dir", str(self.folder), *arguments],
                env={**os.environ, "PATH": f"{os.environ['PATH']}:{self.mark}", **(env or {})},
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip

    def start(self, *arguments: str) -> dict[str, Any]:
        """Start it and wait for stack.json; what that says."""
        self.spawn(*arguments)
        until(lambda: self.state_file.exists() or self.ended, "stack.json", START_S)
        assert not self.ended, self.said
        described: dict[str, Any] = json.loads(self.state_file.read_text())
        return described

    def agents_file(self) -> Path:
        path = self.folder / "given-agents.json"
        script = Path(__file__).with_name("scripted_agent.py")
        path.write_text(json.dumps({"agents": [{"arn": ARN, "command": ["{python}", str(script)]}]}))
        return path

    @property
    def state_file(self) -> Path:
        return self.folder / "stack.json"

    @property
    def output(self) -> Path:
        return self.folder / self.output_name

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def status(self) -> int:
        """Wait for its end; the exit status."""
        assert self.process is not None
        return self.process.wait(END_S)

    def alive(self) -> list[str]:
        """The command line of every living process that came from it."""
        return [_command_line(pid) for pid in _marked(self.mark)]

    def end(self) -> None:
        for pid in _marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(END_S)


def invoke(described: Mapping[str, Any]) -> dict[str, Any]:
    """One invocation of the scripted agent through the real SDK; its answer."""
    s3, emulator = described["s3"], described["emulator"]
    client = boto3.client(
        "bedrock-agentcore", endpoint_url=emulator["endpoint_url"], region_name=s3["region"],
        aws_access_key_id=s3["access_key_id"], aws_secret_access_key=s3["secret_access_key"],
    )  # fmt: skip
    with closing(client):
        answer = client.invoke_agent_runtime(
            agentRuntimeArn=emulator["agent_runtime_arn"], runtimeSessionId=str(uuid.uuid4()), payload=b"{}"
        )
        with closing(answer["response"]) as body:
            told: dict[str, Any] = json.loads(body.read())
    return told


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # gone since the listing
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"pid {pid}"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
