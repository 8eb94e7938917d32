"""One container: a process group with its own folders, port and environment, whose end takes every process with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rollway_emulator import boot, container
from rollway_emulator.agents import AgentSpec
from rollway_emulator.launch import MARKER_VARIABLE, Folders, LaunchPlan, plan_launch
from rollway_emulator.process_tree import kill_tree, signal_group

_BOOT = str(Path(boot.__file__).resolve())
_LAUNCHER = str(Path(container.__file__).resolve())


def make_folders(session_folder: Path, agent: AgentSpec) -> Folders:
    """Fresh folders for one container, never those of an earlier one. Blocking.

    Raises:
        OSError: the state folder cannot be written, or the source cannot be copied.
    """
    session_folder.mkdir(parents=True, exist_ok=True)
    run = 1
    while True:
        folders = Folders.under(session_folder, run)
        try:
            folders.root.mkdir()
            break
        except FileExistsError:
            run += 1
    if agent.copy_source and agent.cwd is not None:
        shutil.copytree(agent.cwd, folders.work, symlinks=True)
    for folder in (folders.work, folders.home, folders.tmp):
        folder.mkdir(exist_ok=True)
    return folders


def remove_folders(folders: Folders) -> None:
    """Blocking. A container may have left anything, so what cannot be removed stays."""
    shutil.rmtree(folders.root, ignore_errors=True)


@dataclass(slots=True)
class Sandbox:
    """A started container. Whoever opens it calls `end`."""

    process: asyncio.subprocess.Process
    marker: str

    @property
    def group(self) -> int:
        """Process group id, which is the pid of the container's first process."""
        return self.process.pid

    async def exited(self) -> int:
        """Wait for the first process; its exit status, negative for a signal."""
        return await self.process.wait()

    async def end(self, grace_s: float) -> None:
        """SIGTERM to the group, ``grace_s`` seconds for the first process, then SIGKILL to all that is left.

        ``grace_s`` 0 kills at once.

        Raises:
            StillAlive: processes outlived SIGKILL.
        """
        if grace_s > 0 and self.process.returncode is None:
            signal_group(self.group, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await self.process.wait()
            except TimeoutError:
                pass
        await asyncio.to_thread(kill_tree, {self.group}, MARKER_VARIABLE, self.marker)
        await self.process.wait()


async def open_sandbox(agent: AgentSpec, folders: Folders, *, port: int, marker: str) -> Sandbox:
    """Start the container's process; it is not serving yet.

    Raises:
        OSError: the log cannot be opened or no process can be started.
    """
    plan = plan_launch(
        agent, port=port, folders=folders, marker=marker, parent=os.environ, python=sys.executable, launcher=_LAUNCHER
    )
    log = await asyncio.to_thread(_open_log, folders, plan)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", _BOOT, str(os.getpid()), *plan.argv,
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=plan.work, env=plan.env, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(log)
    return Sandbox(process, marker)


def _open_log(folders: Folders, plan: LaunchPlan) -> int:
    log = os.open(folders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.write(log, f"[emulator] {datetime.now(UTC).isoformat()} {folders.root.name}: {' '.join(plan.argv)}\n".encode())
    return log
