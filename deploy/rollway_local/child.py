"""One service of the local stack: a process on a leash with a log file, started, healthy, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollway_local import leash
from rollway_local.listening import answers, listening_url

POLL_S = 0.05
SHOWN_LINES = 15


class ChildFailed(Exception):
    """A service did not start or ended by itself. The message names it and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    name: str
    module: str
    """Run as ``python -m module``."""
    env: Mapping[str, str]
    """Added to the stack's environment."""
    health: str = "/health"
    """Path that answers 200 when it can be used."""


class Child:
    """A running service. Made by `start`; ended by `stop`, which whoever started it must await."""

    def __init__(self, spec: ChildSpec, process: asyncio.subprocess.Process, log: Path, pid_file: Path) -> None:
        self.spec = spec
        self.url = ""
        self.admin_url = ""
        """Where it has a second listener."""
        self._leash = process
        self._log = log
        self._pid_file = pid_file

    @classmethod
    async def start(cls, spec: ChildSpec, environment: Mapping[str, str], logs: Path) -> Child:
        """Start the process; it may not be healthy yet. Its log is ``logs/NAME.log``."""
        log, pid_file = logs / f"{spec.name}.log", logs / f"{spec.name}.pid"
        pid_file.unlink(missing_ok=True)
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(pid_file),
                sys.executable, "-m", spec.module,
                env={**environment, **spec.env}, stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink,
                start_new_session=True,
            )  # fmt: skip
        return cls(spec, process, log, pid_file)

    @property
    def pid(self) -> int | None:
        """Of the service itself, from just before it runs; the leash around it has another."""
        return int(self._pid_file.read_text()) if self._pid_file.is_file() else None

    async def until_healthy(self, within_s: float) -> None:
        """Wait until it listens and answers its health check.

        Raises:
            ChildFailed: it ended, or ``within_s`` seconds went by.
        """
        deadline = time.monotonic() + within_s
        while not await self._healthy():
            if self._leash.returncode is not None:
                raise self.failure("did not start: it")
            if time.monotonic() > deadline:
                raise ChildFailed(f"{self.spec.name} is not healthy after {within_s:g} s; its log ends:\n{self.tail()}")
            await asyncio.sleep(POLL_S)

    async def _healthy(self) -> bool:
        if not self.url:
            log = await asyncio.to_thread(self._log.read_text, errors="replace")
            self.url, self.admin_url = listening_url(log), listening_url(log, "admin_url")
        return bool(self.url) and await asyncio.to_thread(answers, self.url, self.spec.health)

    async def ended(self) -> None:
        """Wait until the process has ended, for whatever reason."""
        await self._leash.wait()

    def failure(self, what: str = "") -> ChildFailed:
        """What to say of a service that ended by itself."""
        code = self._leash.returncode or 0
        how = f"was killed by {signal.Signals(code - 128).name}" if code > 128 else f"exited with status {code}"
        return ChildFailed(f"{self.spec.name} {f'{what} ' if what else ''}{how}; its log ends:\n{self.tail()}")

    def tail(self) -> str:
        return _tail(self._log)

    def signal_stop(self) -> None:
        """Ask it to end. The leash makes sure that it does."""
        if self._leash.returncode is None:
            self._leash.terminate()

    async def stop(self) -> None:
        """End it and wait. SIGTERM first; the leash kills what is left of it after its grace time."""
        self.signal_stop()
        try:
            async with asyncio.timeout(leash.GRACE_S + 10):
                await self._leash.wait()
        except TimeoutError:
            self._leash.kill()
            await self._leash.wait()

    async def kill(self) -> None:
        """SIGKILL the service; its leash then kills what it left behind."""
        if self._leash.returncode is None:
            os.kill(self.pid or self._leash.pid, signal.SIGKILL)
        await self._leash.wait()


def _tail(log: Path) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
