"""Starts the processes, starts them again when they end, ends them; serves the admin routes meanwhile.

    bind every socket -> start every process -> serve the admin routes -> SIGTERM -> the processes drain -> end

The sockets are the supervisor's: while a process is started again, what connects to its port waits rather than being
refused. A process that ends within `SHORT_S` of its start is started again after a pause that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import structlog
from fastapi import FastAPI

from rollway_gateway.processes.asking import Processes
from rollway_gateway.processes.folder import claim
from rollway_gateway.processes.front import front
from rollway_gateway.settings import GatewaySettings
from rollway_kit import serve
from rollway_kit.bearer import BearerGate

log = structlog.get_logger()

SHORT_S = 10.0
PAUSES_S = (0.0, 0.5, 2.0, 5.0)
ENV = "ROLLWAY_GATEWAY_"
JOURNAL = f"{ENV}JOURNAL_DIR"


class Supervisor:
    """See the module."""

    def __init__(self, settings: GatewaySettings, given: dict[str, Any]) -> None:
        """
        Args:
            given: settings from the command line, which the processes get as environment.
        """
        assert settings.admin_port is not None
        count = settings.processes
        base = settings.port
        self._settings = settings
        claim(settings.journal_folder, count)
        self.sockets = [serve.bind_or_refuse(settings.host, base + k if base else 0) for k in range(count)]
        self._inside = [serve.bind_or_refuse("127.0.0.1", 0) for _ in range(count)]
        self.admin = serve.bind_or_refuse(settings.admin_interface, settings.admin_port)
        for sock in (*self.sockets, *self._inside):
            sock.listen(2048)
        # Inside, the admin routes always have a key, and keys are signed alike everywhere.
        self._key = settings.admin_keys[0].decode() if settings.admin_keys else secrets.token_hex(32)
        signing = settings.signing_secrets or [secrets.token_hex(32).encode()]
        self._env = {
            **os.environ,
            **{f"{ENV}{name.upper()}": _as_variable(value) for name, value in given.items() if value is not None},
            f"{ENV}PROCESSES": str(count),
            f"{ENV}SIBLINGS": ",".join(serve.url_of(s, _reached(settings.host)) for s in self.sockets),
            f"{ENV}ADMIN_KEY": self._key,
            f"{ENV}KEY_SECRET": b",".join(signing).decode(),
            f"{ENV}REQUIRE_KEYS": str(settings.keys_required).lower(),
            f"{ENV}ADMIN_HOST": "127.0.0.1",
        }
        self._processes = Processes([serve.url_of(s, "127.0.0.1") for s in self._inside], self._key)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = asyncio.Event()
        self._leash = os.pipe()
        """Its writing end is nobody's but the supervisor's, so the processes see when that is gone."""

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Exit status as `serve.run`."""
        app = front(self._processes, self._settings)
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(at: FastAPI) -> AsyncIterator[None]:
            async with inner(at), self._running():
                yield

        app.router.lifespan_context = lifespan
        shown: Any = app
        if self._settings.admin_keys:
            shown = BearerGate(app, self._settings.admin_keys, {"/health"}, f"{ENV}ADMIN_KEY")
        admin = (self.admin, self._settings.admin_interface)
        serve.run(
            shown, self._settings, service="gateway", drain_s=5, sock=self.sockets[0], admin=admin, only_admin=True
        )

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        keepers = [asyncio.create_task(self._keep(k), name=f"process-{k}") for k in range(len(self.sockets))]
        try:
            yield
        finally:
            self._stopping.set()
            for child in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, k: int) -> None:
        """One process, as long as the supervisor lives. Its end by itself is an error that is told."""
        short = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            child = self._children[k] = await asyncio.to_thread(self._spawn, k, self._processes.told.tree())
            status = await asyncio.to_thread(child.wait)
            if self._stopping.is_set():
                return
            short = short + 1 if time.monotonic() - began < SHORT_S else 0
            pause = PAUSES_S[min(short, len(PAUSES_S) - 1)]
            log.error("process_ended", process=k, status=status, again_in_s=pause)
            await asyncio.sleep(pause)

    def _spawn(self, k: int, told: list[dict[str, Any]]) -> subprocess.Popen[bytes]:
        """``told`` is its standard input: what it must know before it serves."""
        agents, inside = self.sockets[k], self._inside[k]
        fds = (agents.fileno(), inside.fileno(), self._leash[0])
        env = {
            **self._env,
            f"{ENV}PROCESS": str(k),
            f"{ENV}PORT": str(agents.getsockname()[1]),
            f"{ENV}ADMIN_PORT": str(inside.getsockname()[1]),
            f"{ENV}SOCKETS": ",".join(map(str, fds)),
        }
        if self._env.get(JOURNAL) or self._settings.port:
            env[JOURNAL] = str(Path(self._env.get(JOURNAL) or f"rollway-journal/{self._settings.port}") / str(k))
        else:
            env[f"{ENV}DURABILITY"] = "memory"  # what comes back at another address has no use for a journal
        command = [sys.executable, "-m", "rollway_gateway"]
        child = subprocess.Popen(command, env=env, pass_fds=fds, stdin=subprocess.PIPE)
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:  # it has ended already: `_keep` sees that
            child.stdin.write(orjson.dumps(told))
        return child


def inherited(
    settings: GatewaySettings,
) -> tuple[socket.socket, tuple[socket.socket, str], list[dict[str, Any]]]:
    """What a process has of its supervisor: the sockets it serves on, agents' and admin, and what was told of pools."""
    agents, inside, leash = map(int, settings.sockets.split(","))
    threading.Thread(target=_end_with, args=(leash,), name="leash", daemon=True).start()
    told: list[dict[str, Any]] = orjson.loads(sys.stdin.buffer.read())
    return socket.socket(fileno=agents), (socket.socket(fileno=inside), "127.0.0.1"), told


def _end_with(leash: int) -> None:
    os.read(leash, 1)  # nothing is ever written: this returns when the supervisor is gone
    os.kill(os.getpid(), signal.SIGTERM)


def _reached(host: str) -> str:
    """How a process on this machine reaches what is bound to ``host``."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _as_variable(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
