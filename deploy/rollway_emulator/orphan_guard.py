"""A process of its own that outlives the emulator just long enough to kill what it left.

It reads a pipe that only the emulator holds open, one ``+group`` or ``-group`` line per container started or ended.
When the pipe ends, the emulator is gone, however it went: the guard kills every group still listed and every process
that carries the emulator's marker, then exits. Run as ``python -m rollway_emulator.orphan_guard VARIABLE PREFIX``.
"""

from __future__ import annotations

import signal
import sys
from typing import TextIO

from rollway_emulator.process_tree import kill_tree


def guard(lines: TextIO, variable: str, prefix: str) -> None:
    """Read until the pipe ends, then leave nothing alive."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    kill_tree(groups, variable, prefix)


if __name__ == "__main__":
    # Ctrl-C and a supervisor's SIGTERM are the emulator's to handle; the guard goes when the pipe ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guard(sys.stdin, sys.argv[1], sys.argv[2])
