"""One runtime session: a container of its own from the first call to the last process.

`Session.signal` is the only place that changes its state (`rollway_emulator.lifecycle`); `Session.run` is the one
task that does the I/O the change asks for. Everybody else reads, signals, or waits.
Longer than other files, so that one life is read in one place from start to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import structlog

from rollway_emulator.agents import AgentSpec
from rollway_emulator.chaos import Chaos
from rollway_emulator.container_link import ContainerLink, Ping
from rollway_emulator.errors import RuntimeClientError
from rollway_emulator.launch import Folders, folder_name
from rollway_emulator.lifecycle import TAKES_CALLS, Action, Event, Limits, State, due, step
from rollway_emulator.orphan_watch import OrphanWatch
from rollway_emulator.ports import NoFreePort, PortRange
from rollway_emulator.process_tree import StillAlive
from rollway_emulator.sandbox import Sandbox, make_folders, open_sandbox, remove_folders

log = structlog.get_logger()
T = TypeVar("T")

_FIRST_PING_GAP_S = 0.02
_LONGEST_PING_GAP_S = 0.25


@dataclass(frozen=True, slots=True)
class Premises:
    """What all sessions share."""

    state_dir: Path
    link: ContainerLink
    ports: PortRange
    orphans: OrphanWatch
    limits: Limits
    ping_interval_s: float
    stop_grace_s: float
    keep_folders: bool


class Session:
    """Created STARTING; `run` must be started at once and awaited before the emulator goes."""

    def __init__(self, agent: AgentSpec, session_id: str, chaos: Chaos, premises: Premises) -> None:
        self.agent = agent
        self.session_id = session_id
        self.state = State.STARTING
        self.reason: Event | None = None
        """The event that ended it; None while it takes calls."""
        self.detail = ""
        """Why it could not start or what its process exited with."""
        self.port: int | None = None
        self.ping = Ping.UNREACHABLE
        self._chaos = chaos
        self._premises = premises
        self._folder = premises.state_dir / "sessions" / folder_name(session_id)
        self._marker = premises.orphans.new_marker()
        self._sandbox: Sandbox | None = None
        self._action = Action.NONE
        self._over = asyncio.Event()
        self._kill_now = asyncio.Event()
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._calls = 0
        self._started = self._last_active = time.monotonic()
        self._started_at = self._used_at = datetime.now(UTC)

    @property
    def takes_calls(self) -> bool:
        return self.state in TAKES_CALLS

    @property
    def log_path(self) -> Path:
        return self._folder / "container.log"

    def signal(self, event: Event) -> None:
        """Step the lifecycle. What it asks for is done by `run`.

        Raises:
            ValueError: the event cannot happen in this state.
        """
        before = self.state
        self.state, action = step(before, event)
        if before in TAKES_CALLS and self.state not in TAKES_CALLS:
            self.reason = event
            self._over.set()
        elif before is State.STARTING:
            self._settled.set()
        if action is not Action.NONE:
            self._action = action
        if action is Action.KILL:
            self._kill_now.set()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call in flight: while one is, the session is not idle."""
        self._calls += 1
        self._used_at = datetime.now(UTC)
        try:
            yield
        finally:
            self._calls -= 1
            self._last_active = time.monotonic()

    async def ready(self) -> int:
        """Wait until it can be called; its port.

        Raises:
            RuntimeClientError: it ended before it was ready.
        """
        await self._settled.wait()
        if self.state is not State.READY or self.port is None:
            raise RuntimeClientError(self.epitaph())
        return self.port

    async def over(self) -> None:
        """Wait until it takes no more calls; its processes may still live."""
        await self._over.wait()

    async def ended(self) -> None:
        """Wait until none of its processes lives."""
        await self._ended.wait()

    def epitaph(self) -> str:
        """What a caller is told about a container that is not there any more."""
        why = f"the container ended: {self.reason}" if self.reason else "the container does not answer"
        return f"{why}{f' ({self.detail})' if self.detail else ''}; its log: {self.log_path}"

    async def run(self) -> None:
        """The whole life: start, watch, end. Returns when no process of it lives."""
        with structlog.contextvars.bound_contextvars(session_id=self.session_id, arn=self.agent.arn):
            log.info("session_starting", container_log=str(self.log_path))
            try:
                folders = await self._open()
                try:
                    await self._start(folders)
                    await self._watch()
                finally:
                    await self._close(folders)
            finally:
                self._settled.set()
                self._ended.set()

    async def _open(self) -> Folders | None:
        try:
            self.port = self._premises.ports.acquire()
            return await asyncio.to_thread(make_folders, self._folder, self.agent)
        except (OSError, NoFreePort) as e:
            self._fail(str(e))
            return None

    def _fail(self, detail: str) -> None:
        self.detail = detail
        if self.takes_calls:
            self.signal(Event.START_FAILED)

    async def _start(self, folders: Folders | None) -> None:
        delay = self.agent.cold_start_delay_s + self._chaos.extra_start_s()
        await self._pause(delay)
        if self._over.is_set() or folders is None or self.port is None:
            return
        if self._chaos.fails_start():
            self._fail("chaos: fail_start")
            return
        try:
            self._sandbox = await open_sandbox(self.agent, folders, port=self.port, marker=self._marker)
        except OSError as e:
            self._fail(f"no process could be started: {e}")
            return
        await self._premises.orphans.add(self._sandbox.group)

    async def _watch(self) -> None:
        """Until the session is over, by its own limits, its process's exit, or a signal from outside."""
        if self._sandbox is None:
            return
        async with asyncio.TaskGroup() as group:
            exit_watch = group.create_task(self._note_exit(self._sandbox))
            try:
                if await self._await_ping():
                    await self._keep_limits()
            finally:
                exit_watch.cancel()

    async def _note_exit(self, sandbox: Sandbox) -> None:
        status = await sandbox.exited()
        if not self._over.is_set():
            self.detail = f"its process exited with status {status}"
        self.signal(Event.EXITED)

    async def _await_ping(self) -> bool:
        assert self.port is not None
        deadline = time.monotonic() + self.agent.start_timeout_s
        gap = _FIRST_PING_GAP_S
        while not self._over.is_set():
            ping = await self._unless_over(self._premises.link.ping(self.port))
            if ping in (Ping.HEALTHY, Ping.BUSY) and not self._over.is_set():
                self.ping = ping
                self._last_active = time.monotonic()
                self.signal(Event.PING_OK)
                log.info("session_ready", pid=self._sandbox and self._sandbox.group, port=self.port,
                         start_s=round(self._last_active - self._started, 3))  # fmt: skip
                return True
            if time.monotonic() > deadline and not self._over.is_set():
                self.detail = (
                    f"/ping did not answer on port {self.port} within {self.agent.start_timeout_s:g} s;"
                    " an agent that ignores $PORT needs {launcher} before its script"
                )
                self.signal(Event.START_TIMEOUT)
            await self._pause(gap)
            gap = min(gap * 1.5, _LONGEST_PING_GAP_S)
        return False

    async def _keep_limits(self) -> None:
        assert self.port is not None
        crash_after = self._chaos.crash_after_s()
        crash_at = None if crash_after is None else time.monotonic() + crash_after
        end_of_life = self._started + self._premises.limits.lifetime_s
        while not self._over.is_set():
            now = time.monotonic()
            until = min(now + self._premises.ping_interval_s, end_of_life, crash_at or end_of_life)
            await self._pause(until - now)
            if crash_at is not None and time.monotonic() >= crash_at and not self._over.is_set():
                self.detail = f"chaos: crash after {crash_after:g} s"
                self.signal(Event.CRASHED)
            ping = await self._unless_over(self._premises.link.ping(self.port))
            if ping is not None:
                self._note_ping(ping)
            now = time.monotonic()
            event = due(self._premises.limits, now=now, started=self._started,
                        last_active=self._last_active, calls_in_flight=self._calls)  # fmt: skip
            if event is not None and not self._over.is_set():
                self.signal(event)

    def _note_ping(self, ping: Ping) -> None:
        # Unreachable is only noted: an agent that blocks its event loop is slow, not dead. A dead one exits.
        if ping is not self.ping:
            log.info("session_ping", was=self.ping, now=ping)
        if ping is Ping.BUSY:
            self._last_active = time.monotonic()
        self.ping = ping

    async def _close(self, folders: Folders | None) -> None:
        if self.takes_calls:
            # Only a bug or a cancelled task comes here without an event: leave no process behind it.
            self.signal(Event.KILLED)
        self._settled.set()
        try:
            if self._sandbox is not None:
                await self._end_processes(self._sandbox)
        finally:
            if self.port is not None:
                self._premises.ports.release(self.port)
        if folders is not None and not self._premises.keep_folders:
            await asyncio.to_thread(remove_folders, folders)
        self.signal(Event.CLEARED)
        log.info("session_ended", reason=self.reason, detail=self.detail)

    async def _end_processes(self, sandbox: Sandbox) -> None:
        try:
            if self._action is Action.TERMINATE:
                await self._polite_end(sandbox)
            await sandbox.end(0)
        except StillAlive as e:
            log.error("session_processes_left", detail=str(e))  # noqa: TRY400 - the message is the whole story
        else:
            await self._premises.orphans.remove(sandbox.group)

    async def _polite_end(self, sandbox: Sandbox) -> None:
        """SIGTERM and the grace, cut short when a kill overtakes."""
        ending = asyncio.create_task(sandbox.end(self._premises.stop_grace_s))
        overtaken = asyncio.create_task(self._kill_now.wait())
        await _first_of(ending, overtaken)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or less when the session is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._over.wait()

    async def _unless_over(self, work: Awaitable[T]) -> T | None:
        """The result of ``work``, or None when the session is over first; ``work`` is then cancelled."""
        task = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._over.wait())
        await _first_of(task, over)
        return None if task.cancelled() else task.result()

    def view(self) -> dict[str, Any]:
        """What the admin API shows."""
        return {
            "session_id": self.session_id,
            "arn": self.agent.arn,
            "state": self.state,
            "reason": self.reason,
            "detail": self.detail,
            "pid": None if self._sandbox is None else self._sandbox.group,
            "port": self.port,
            "ping": self.ping,
            "calls_in_flight": self._calls,
            "started_at": self._started_at.isoformat(),
            "last_used_at": self._used_at.isoformat(),
            "log": str(self.log_path),
        }


async def _first_of(*tasks: asyncio.Future[Any]) -> None:
    """Wait for one, cancel the others, and leave none running, also when cancelled itself."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
