"""One agent process: spawned in its own process group, found again after a restart, seen to die, killed as a group.

A process carries its session in its environment, so an agent that outlived its dispatcher is found by reading
/proc; nothing about it needs to be stored, and there is no moment in which it exists unrecorded. Where there is no
/proc (macOS), agents that outlived their dispatcher are not found; their rollouts then fail as ``agent_died``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollway_wire.batch import ProcessLimits

SESSION_VARIABLE = "ROLLWAY_SESSION_ID"
STATE_VARIABLE = "ROLLWAY_AGENT_OWNER"
"""Which dispatcher state file the agent belongs to: two dispatchers on one machine leave each other's agents alone."""
STOP_GRACE_S = 3.0
"""From SIGTERM, on which the shim saves a cancelled result, to SIGKILL."""
_POLL_S = 0.05


@dataclass(slots=True)
class AgentProcess:
    """A process group's leader. ``exit_code`` is None while it lives, and for a process that is not our child."""

    pid: int
    port: int
    is_child: bool
    log_path: Path | None = None
    exit_code: int | None = None
    dead: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Wait for its death, then reap it and set ``dead``."""
        try:
            pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except ProcessLookupError:
            self._reap()
            return
        if pidfd is None:
            while not self._reap():  # noqa: ASYNC110 - the system tells nobody but the parent
                await asyncio.sleep(_POLL_S)
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pidfd, gone.set)  # readable once the process has ended, child or not
        try:
            await gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        self._reap(ended=True)

    def _reap(self, *, ended: bool = False) -> bool:
        if self.is_child:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid == 0:
                    return False
                self.exit_code = os.waitstatus_to_exitcode(status)
        elif not ended and _exists(self.pid):
            return False
        self.dead.set()
        return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal the whole group; what the agent started dies with it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def end(self) -> bool:
        """SIGTERM, some grace, SIGKILL for the whole group; whether it is gone."""
        self.kill(signal.SIGTERM)
        await self._dies_within(STOP_GRACE_S)
        self.kill()  # also what the leader left behind in its group
        if not await self._dies_within(STOP_GRACE_S):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                while not self.group_is_gone():  # noqa: ASYNC110 - nothing tells when a group is empty
                    await asyncio.sleep(_POLL_S)
        return self.group_is_gone()

    async def _dies_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.dead.wait(), seconds)
        return self.dead.is_set()

    def group_is_gone(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # macOS says so of a group of zombies
            return self.dead.is_set()
        return False

    def epitaph(self) -> str:
        """How it ended, with the last lines it wrote."""
        if self.exit_code is None:
            how = "the agent process is gone"
        elif self.exit_code < 0:
            how = f"the agent process was killed by {signal.Signals(-self.exit_code).name}"
        else:
            how = f"the agent process exited with status {self.exit_code}"
        return f"{how}{_tail(self.log_path)}"


def spawn(
    argv: Sequence[str], *, port: int, cwd: str | None, env: Mapping[str, str], log_path: Path,
    limits: ProcessLimits | None = None,
) -> AgentProcess:  # fmt: skip
    """Start a process as the leader of its own session and process group, its output in ``log_path``. Blocks briefly.

    Raises:
        OSError: the program cannot be run.
    """
    program = shutil.which(argv[0], path=env.get("PATH")) if not (cwd and "/" in argv[0]) else argv[0]
    if program is None:
        raise FileNotFoundError(f"no program {argv[0]!r}")
    if cwd is not None and not Path(cwd).is_dir():
        raise FileNotFoundError(f"no folder {cwd!r}")
    if preparations := _preparations(cwd, limits):
        # posix_spawn has neither working folder nor limits; a shell takes them and becomes the program.
        argv = ["/bin/sh", "-c", f'{preparations} && shift && exec "$@"', "sh", cwd or "", program, *argv[1:]]
        program = "/bin/sh"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log_path), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # Not subprocess.Popen, whose end kills or complains about a child that is meant to outlive this process.
    pid = os.posix_spawn(program, list(argv), dict(env), file_actions=actions, setsid=True)
    return AgentProcess(pid, port, is_child=True, log_path=log_path)


def _preparations(cwd: str | None, limits: ProcessLimits | None) -> str:
    """Shell commands; the folder is $1."""
    limits = limits or ProcessLimits()
    steps = []
    if limits.memory_bytes is not None:
        steps.append(f"ulimit -v {limits.memory_bytes // 1024}")
    if limits.cpu_s is not None:
        steps.append(f"ulimit -t {limits.cpu_s}")
    if limits.open_files is not None:
        steps.append(f"ulimit -n {limits.open_files}")
    if cwd is not None:
        steps.append('cd -- "$1"')
    return " && ".join(steps)


def survivors(owner: str) -> dict[str, AgentProcess]:
    """Agents of an earlier run with the same owner that still live, by session id. Blocks."""
    found: dict[str, AgentProcess] = {}
    proc = Path("/proc")
    for folder in proc.iterdir() if proc.is_dir() else ():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        with contextlib.suppress(OSError, ValueError):
            raw = (folder / "environ").read_bytes().decode(errors="replace")
            env = dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)
            if env.get(STATE_VARIABLE) == owner and SESSION_VARIABLE in env and os.getpgid(pid) == pid:
                found[env[SESSION_VARIABLE]] = AgentProcess(pid, int(env["PORT"]), is_child=False)
    return found


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _tail(log_path: Path | None, size: int = 1500) -> str:
    if log_path is None:
        return ""
    try:
        text = log_path.read_bytes()[-size:].decode(errors="replace").strip()
    except OSError as e:
        return f"; its log cannot be read: {e}"
    return f"; its last words: {text}" if text else "; it wrote nothing"
