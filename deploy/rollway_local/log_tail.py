"""Shows the services' logs as they grow, each line behind its service's name, in colour on a terminal."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.2
COLOURS = (36, 33, 35, 32, 34, 31)


async def follow(folder: Path) -> None:
    """Print new lines of every ``*.log`` in ``folder`` until cancelled, and then what is there."""
    opened: dict[str, BinaryIO] = {}
    rest: dict[str, bytes] = {}
    looking: asyncio.Task[None] | None = None
    try:
        while True:
            looking = asyncio.create_task(asyncio.to_thread(_show_new, folder, opened, rest))
            await asyncio.shield(looking)
            await asyncio.sleep(POLL_S)
    finally:
        if looking is not None:  # its thread goes on when it is cancelled, and two at once would tear lines
            await looking
        _show_new(folder, opened, rest)
        for log in opened.values():
            log.close()


def _show_new(folder: Path, opened: dict[str, BinaryIO], rest: dict[str, bytes]) -> None:
    for path in sorted(folder.glob("*.log")):
        if path.stem not in opened:
            opened[path.stem] = path.open("rb")
        *lines, rest[path.stem] = (rest.get(path.stem, b"") + opened[path.stem].read()).split(b"\n")
        for line in lines:
            print(_prefix(path.stem, list(opened).index(path.stem)) + line.decode(errors="replace"), flush=True)


def _prefix(name: str, place: int) -> str:
    label = f"{name:<10} | "
    return f"\033[{COLOURS[place % len(COLOURS)]}m{label}\033[0m" if sys.stdout.isatty() else label
