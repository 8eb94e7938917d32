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
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


class StillAlive(RuntimeError):
    """Processes were sent SIGKILL and did not go."""


def marked(variable: str, prefix: str) -> set[int]:
    """Living processes whose environment has ``variable`` with a value that begins with ``prefix``.

    Empty where there is no /proc.
    """
    needle = b"\0" + f"{variable}={prefix}".encode()
    found = set()
    for entry in _PROC.glob("[0-9]*"):
        # A process may end while we look, and another user's is not ours to read or to kill.
        with suppress(OSError):
            if needle in b"\0" + (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group; one that is already gone is no error."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def kill_tree(group: int | None, variable: str, prefix: str, *, deadline_s: float = 10.0) -> None:
    """SIGKILL the group and everything marked, until two looks in a row find nothing.

    Two, because a process in the middle of exec shows no environment for an instant.

    Raises:
        StillAlive: some are left after ``deadline_s``.
    """
    if group is not None:
        signal_group(group, signal.SIGKILL)
    give_up = time.monotonic() + deadline_s
    clean_looks = 0
    while clean_looks < 2:
        left = marked(variable, prefix)
        clean_looks = 0 if left else clean_looks + 1
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up:
            raise StillAlive(f"processes {sorted(left)} outlived SIGKILL by {deadline_s} s")
        time.sleep(0.01)
