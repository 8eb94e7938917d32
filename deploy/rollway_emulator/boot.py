"""First code of a container's process: ask the kernel to kill it when the emulator dies, then become the agent.

Standard library only, run by path with ``-I -S``: the container's environment is the agent's, not ours. A program
rather than a ``preexec_fn``, which would run between fork and exec in a process that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed when ``parent`` goes (Linux). Exits at once where it has gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(137)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as e:
        sys.stderr.write(f"cannot run {sys.argv[2]}: {e.strerror}\n")
        sys.exit(127)
