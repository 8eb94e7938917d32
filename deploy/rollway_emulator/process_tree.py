"""Finding and killing every process of a session, also those that left its process group.

A container's end takes all its processes with it. Here a child may have called setsid (MCP servers, browsers and
daemons do), so the group is not enough: on Linux each process is also known by a marker in its environment, which
children inherit. A process that cleared its environment *and* left its group is out of reach. Blocking: call it in
a thread.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_ENDED = ("Z", "X")


class StillAlive(RuntimeError):
    """Processes were sent SIGKILL and did not go."""


class _Process(NamedTuple):
    """One that can still do something, or has not let go of its files and ports yet: no zombie."""

    pid: int
    began: str
    """With the pid it names a process for good: pids are given anew."""


def _living(groups: Collection[int], needle: bytes, known: Collection[_Process]) -> set[_Process]:
    """Of these groups, marked, or known: one that dies has no environment any more, and may take a while.

    Empty where there is no /proc.
    """
    found = set()
    for entry in _PROC.glob("[0-9]*"):
        # A process may end while we look, and another user's is not ours to read or to kill.
        with suppress(OSError):
            state, _, group, *more = (entry / "stat").read_text().rpartition(")")[2].split()
            process = _Process(int(entry.name), began=more[16])
            if state in _ENDED:
                continue
            if int(group) in groups or process in known or needle in b"\0" + (entry / "environ").read_bytes():
                found.add(process)
    return found


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group; one that is already gone is no error."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def kill_tree(groups: Collection[int], variable: str, prefix: str, *, deadline_s: float = 10.0) -> None:
    """SIGKILL the groups and everything whose environment has ``variable`` with a value that begins with ``prefix``,
    until two looks in a row find nothing of it.

    Two, because a process in the middle of exec shows no environment for an instant.

    Raises:
        StillAlive: some are left after ``deadline_s``.
    """
    needle = b"\0" + f"{variable}={prefix}".encode()
    for group in groups:
        signal_group(group, signal.SIGKILL)
    give_up = time.monotonic() + deadline_s
    known: set[_Process] = set()
    clean_looks = 0
    while clean_looks < 2:
        left = _living(groups, needle, known)
        known |= left
        clean_looks = 0 if left else clean_looks + 1
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if left and time.monotonic() > give_up:
            raise StillAlive(f"processes {sorted(p.pid for p in left)} outlived SIGKILL by {deadline_s} s")
        time.sleep(0.01)
