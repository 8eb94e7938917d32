"""The local stack: S3, emulator, gateway and dispatcher, started in this order, ended in reverse, never left behind.

start s3 -> emulator -> gateway -> dispatcher -> write stack.json
a stop is asked for, or a service ends by itself
remove stack.json -> end dispatcher -> gateway -> emulator -> s3
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollway_local import s3_server
from rollway_local.agents_file import first_arn
from rollway_local.child import Child, ChildSpec

REGION = "us-west-2"
_GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "rollway-local", "AWS_SECRET_ACCESS_KEY": "rollway-local"}
"""What moto accepts; a person's own AWS settings never reach the stack."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What `rollway up` was asked for."""

    folder: Path
    """Holds stack.json, logs/ and the services' state."""
    agents: Path
    """The emulator's agents file."""
    bucket: str = "rollway"
    s3_port: int = 0
    emulator_port: int = 0
    gateway_port: int = 0
    dispatcher_port: int = 0
    allow_process_runtime: bool = False
    start_timeout_s: float = 90.0
    """For each service."""

    @property
    def state_file(self) -> Path:
        return self.folder / "stack.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


def _secret() -> str:
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Of one run; stack.json tells those that a caller needs."""

    gateway_signing: str = field(default_factory=_secret, repr=False)
    gateway_admin: str = field(default_factory=_secret, repr=False)
    dispatcher: str = field(default_factory=_secret, repr=False)


@dataclass
class Stack:
    """The running services, in the order they were started."""

    options: StackOptions
    children: list[Child] = field(default_factory=list)
    secrets: Secrets = field(default_factory=Secrets)

    async def start(self, said: Callable[[str], None]) -> None:
        """Start all four, each healthy before the next, and write stack.json.

        Raises:
            ChildFailed: one did not become healthy; those started still run until `stop`.
        """
        environment = stack_environment(os.environ)
        s3 = await self._run(self._s3_spec(), environment, said)
        environment |= {"AWS_ENDPOINT_URL_S3": s3.url}
        await self._run(self._emulator_spec(), environment, said)
        gateway = await self._run(self._gateway_spec(), environment, said)
        await self._run(self._dispatcher_spec(s3.url, gateway.admin_url), environment, said)
        write_atomically(self.options.state_file, self.described())

    async def _run(self, spec: ChildSpec, environment: Mapping[str, str], said: Callable[[str], None]) -> Child:
        child = await Child.start(spec, environment, self.options.logs)
        self.children.append(child)
        await child.until_healthy(self.options.start_timeout_s)
        said(f"{spec.name:<11} {child.url}")
        return child

    async def until_one_ends(self) -> Child:
        """The first service that ends by itself."""
        waiting = {asyncio.create_task(child.ended()): child for child in self.children}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return waiting[next(iter(done))]

    async def stop(self) -> None:
        """End every service, the last started first; stack.json goes before them."""
        self.options.state_file.unlink(missing_ok=True)
        for child in reversed(self.children):
            await child.stop()

    async def kill(self) -> None:
        """End every service at once."""
        self.options.state_file.unlink(missing_ok=True)
        await asyncio.gather(*(child.kill() for child in self.children))

    def described(self) -> dict[str, Any]:
        """What stack.json says: where everything is, and how to reach it."""
        url = {child.spec.name: child.url for child in self.children}
        admin = [child.admin_url for child in self.children if child.admin_url]
        return {
            "s3": {
                "endpoint_url": url["s3"], "bucket": self.options.bucket, "region": REGION,
                "access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                "secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            },
            "emulator": {"endpoint_url": url["emulator"], "agent_runtime_arn": first_arn(self.options.agents)},
            "gateway": {
                "url": url["gateway"], "admin_url": admin[0], "admin_key": self.secrets.gateway_admin,
            },
            "dispatcher": {"url": url["dispatcher"], "api_key": self.secrets.dispatcher},
            "pids": {"up": os.getpid(), **{child.spec.name: child.pid for child in self.children}},
            "logs": str(self.options.logs),
        }  # fmt: skip

    def _s3_spec(self) -> ChildSpec:
        env = {"ROLLWAY_S3_PORT": str(self.options.s3_port), "ROLLWAY_S3_BUCKET": self.options.bucket}
        return ChildSpec("s3", "rollway_local.s3_server", env, s3_server.HEALTH)

    def _emulator_spec(self) -> ChildSpec:
        settings = {
            "port": self.options.emulator_port,
            "agents": self.options.agents,
            "state_dir": self.options.folder / "emulator",
        }
        return ChildSpec("emulator", "rollway_emulator", _settings("EMULATOR", settings))

    def _gateway_spec(self) -> ChildSpec:
        settings = {
            "port": self.options.gateway_port,
            "journal_dir": self.options.folder / "gateway-journal",
            "admin_port": 0,
            "key_secret": self.secrets.gateway_signing,
            "admin_key": self.secrets.gateway_admin,
        }
        return ChildSpec("gateway", "rollway_gateway", _settings("GATEWAY", settings))

    def _dispatcher_spec(self, s3_url: str, gateway_url: str) -> ChildSpec:
        # Agents are told this address, so it must be known before the service binds it.
        port = self.options.dispatcher_port or free_port()
        settings = {
            "port": port,
            "public_url": f"http://127.0.0.1:{port}",
            "api_key": self.secrets.dispatcher,
            "gateway_url": gateway_url,
            "gateway_api_key": self.secrets.gateway_admin,
            "s3_endpoint_url": s3_url,
            "s3_bucket": self.options.bucket,
            "region": REGION,
            "state_path": self.options.folder / "dispatcher.sqlite3",
            "allow_process_runtime": str(self.options.allow_process_runtime).lower(),
        }
        return ChildSpec("dispatcher", "rollway_dispatcher", _settings("DISPATCHER", settings))


def stack_environment(person: Mapping[str, str]) -> dict[str, str]:
    """The services' environment: the person's, with the stack's own AWS account in place of theirs."""
    kept = {name: value for name, value in person.items() if not name.startswith("AWS_")}
    local = ",".join(filter(None, (person.get("NO_PROXY") or person.get("no_proxy"), "127.0.0.1", "localhost")))
    return {
        **kept, **CREDENTIALS, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": local, "no_proxy": local, "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def _settings(service: str, values: Mapping[str, object]) -> dict[str, str]:
    fixed = {"host": "127.0.0.1", "log_json": "true"}
    return {f"ROLLWAY_{service}_{name.upper()}": str(value) for name, value in {**fixed, **values}.items()}


def free_port() -> int:
    """One below those that the kernel gives away (Linux says which): until it is bound, nobody's connection comes by
    it."""
    first = int(_GIVEN_AWAY.read_text().split()[0]) if _GIVEN_AWAY.exists() else 32_768
    below = range(max(1024, first - 10_000), first)
    for port in (*random.sample(below, len(below)), 0):
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no port is free")


def write_atomically(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON, for this user's eyes alone, so that a reader sees the old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(document, indent=2) + "\n")
    draft.replace(path)


@contextlib.contextmanager
def claimed(options: StackOptions) -> Iterator[None]:
    """Hold the folder for one stack and empty it of an earlier one's state; logs of the last run are replaced.

    Raises:
        BlockingIOError: another `rollway up` holds it.
    """
    options.logs.mkdir(parents=True, exist_ok=True)
    with (options.folder / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for stale in (options.state_file, *options.folder.glob("dispatcher.sqlite3*")):
            if stale.is_dir():
                shutil.rmtree(stale)  # the logs of agents that were local processes
            else:
                stale.unlink(missing_ok=True)
        yield
