"""Real service processes for tests: started on a free port, healthy before use, killed after the test.

service = services.start("dispatcher", ["-m", "rollway_dispatcher"], env={...})
service = await services.start_async(...)        # where the test's own loop serves something the child needs
service.url, service.pid, service.logs()
service.kill()                                   # SIGKILL; `stop()` is SIGTERM
service = services.start(..., env={..., "ROLLWAY_DISPATCHER_PORT": str(service.port)})   # again, same address
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rollway_local.listening import answers, listening_url
from tests.kit.deadlines import POLL_S
from tests.kit.ports import hold

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0


class ServiceFailed(AssertionError):
    """A service process did not become healthy, or would not stop."""


@dataclass
class Service:
    """One service process, in its own process group."""

    name: str
    process: subprocess.Popen[bytes]
    log_path: Path
    health: str | None
    url: str = ""
    """Base URL, known once the process has logged that it listens."""
    held: socket.socket | None = field(default=None, init=False, repr=False)
    """Keeps its port from others once it has ended: it may be started again at the same address."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def logs(self) -> str:
        """Everything it wrote to standard output and standard error so far."""
        return self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to the service alone, not to its children."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the service alone and reap it."""
        self.process.kill()
        self.wait()

    def stop(self, within_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM, wait, and return the exit status (0 after a clean stop; negative: died by that signal)."""
        self.process.terminate()
        return self.wait(within_s)

    def wait(self, within_s: float = STOP_DEADLINE_S) -> int:
        """Wait for it to end by itself; the exit status."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise ServiceFailed(f"{self.name} still runs after {within_s:g} s\n{self._tail()}") from None
        if self.url and self.held is None:
            with contextlib.suppress(OSError):  # started anew already, or still served by a child that outlives it
                self.held = hold(self.port)
        return status

    def ready(self) -> bool:
        """True once it listens and its health route answers 200.

        Raises:
            ServiceFailed: the process has ended.
        """
        if not self.running:
            raise ServiceFailed(f"{self.name} exited with {self.process.returncode} at start\n{self._tail()}")
        self.url = self.url or listening_url(self.logs())
        return bool(self.url) and (self.health is None or answers(self.url, self.health))

    def end(self) -> None:
        """SIGKILL whatever is left of its process group and reap the service."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_DEADLINE_S)
        if self.held is not None:
            self.held.close()

    def _tail(self) -> str:
        return f"--- log of {self.name} ---\n{self.logs()[-8000:]}"


@dataclass
class Services:
    """Starts services for one test and leaves none behind."""

    log_dir: Path
    started: list[Service] = field(default_factory=list)

    def start(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None,
        health: str | None = "/health", within_s: float = START_DEADLINE_S, python: str = sys.executable,
        cwd: Path | None = None,
    ) -> Service:  # fmt: skip
        """Run ``python *arguments`` and wait until it is healthy; blocks the calling thread.

        Args:
            env: added to this process's environment.
            health: path that must answer 200; None: the "listening" log line is enough.

        Raises:
            ServiceFailed: it ended, or was not healthy in time; with its log.
        """
        service = self.spawn(name, arguments, env=env, health=health, python=python, cwd=cwd)
        deadline = time.monotonic() + within_s
        while not service.ready():
            self._check(service, deadline, within_s)
            time.sleep(POLL_S)
        return service

    async def start_async(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None,
        health: str | None = "/health", within_s: float = START_DEADLINE_S, python: str = sys.executable,
        cwd: Path | None = None,
    ) -> Service:  # fmt: skip
        """`start` without blocking the event loop."""
        service = self.spawn(name, arguments, env=env, health=health, python=python, cwd=cwd)
        deadline = time.monotonic() + within_s
        while not await asyncio.to_thread(service.ready):
            self._check(service, deadline, within_s)
            await asyncio.sleep(POLL_S)
        return service

    def spawn(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None,
        health: str | None = None, python: str = sys.executable, cwd: Path | None = None,
    ) -> Service:  # fmt: skip
        """Run it without waiting; for processes that are meant to refuse to start."""
        log_path = self.log_dir / f"{len(self.started)}-{name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [python, *arguments], env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        service = Service(name, process, log_path, health)
        self.started.append(service)
        return service

    def close(self) -> None:
        for service in reversed(self.started):
            service.end()

    @staticmethod
    def _check(service: Service, deadline: float, within_s: float) -> None:
        if time.monotonic() > deadline:
            raise ServiceFailed(f"{service.name} is not healthy after {within_s:g} s\n{service._tail()}")
