"""Runs one service so that it, and whatever it starts, never outlives `rollway up`.

    python leash.py PARENT_PID PID_FILE COMMAND [ARGS…]

`rollway up` starts each service through this. The kernel tells a leash when its parent dies, by whatever signal; a
process that a descendant leaves behind becomes the leash's child, so that nothing escapes. The pid of the command is
written to PID_FILE before it runs. The exit status is the command's, or 128 + n when signal n ended it.

Standard library only, one thread; Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

GRACE_S = 20.0
"""From SIGTERM to SIGKILL; longer than any service's own drain."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def descendants(root: int) -> set[int]:
    """The pids of every living process below ``root``."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue  # gone since the listing
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    below = [root]
    while below:
        children = parents.get(below.pop(), [])
        found.update(children)
        below += children
    return found


def _start(command: list[str], parent: int, pid_file: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        pid_file.write_text(str(os.getpid()))
        if os.getppid() == parent:
            os.execvp(command[0], command)
    except OSError as e:
        sys.stderr.write(f"cannot run {command[0]}: {e.strerror}\n")
    os._exit(127)


def _reap(child: int) -> int | None:
    """Reap every ended process; the command's wait status if it is among them."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == child:
            ended = status


def _kill_the_rest() -> None:
    while left := descendants(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap(0)
        time.sleep(0.01)


def _wait(child: int) -> int:
    """Hand signals on until the command has ended; its wait status."""
    deadline = None
    while True:
        left = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        arrived = signal.sigtimedwait(_WATCHED, left)
        if (status := _reap(child)) is not None:
            return status
        if arrived is None and deadline is not None:
            os.kill(child, signal.SIGKILL)
        elif arrived is not None and arrived.si_signo != signal.SIGCHLD:
            deadline = deadline or time.monotonic() + GRACE_S
            os.kill(child, signal.SIGTERM)


def main(arguments: list[str]) -> NoReturn:
    parent, pid_file, command = int(arguments[0]), Path(arguments[1]), arguments[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(1)  # the parent died before the kernel was asked to tell
    status = _wait(_start(command, os.getpid(), pid_file))
    _kill_the_rest()
    code = os.waitstatus_to_exitcode(status)
    raise SystemExit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
