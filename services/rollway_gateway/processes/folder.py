"""The journal's folder: one process's own, or with a folder in it for each of several.

Where a session lives depends on how many processes there are. Started with another number, a gateway would look for its
live sessions in the wrong place and not find them, so the number stands in the folder, and another is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rollway_gateway.journal.disk import SUFFIX

NUMBER = "processes"


def claim(folder: Path | None, count: int) -> None:
    """Take the folder for so many processes, or exit with status 2 and the reason. None: there is no journal."""
    if folder is None:
        return
    known = _known(folder)
    if known not in (None, count):
        sys.stderr.write(
            f"refusing to start: {folder} holds the sessions of {known} process(es), which {count} would not find: "
            f"start with --processes {known}, or with another --journal-dir once its sessions are over\n"
        )
        raise SystemExit(2)
    if known is None and count > 1:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{NUMBER}.new"
        new.write_text(str(count))
        new.replace(folder / NUMBER)


def _known(folder: Path) -> int | None:
    try:
        return int((folder / NUMBER).read_text())
    except FileNotFoundError:
        return 1 if any(folder.glob(f"*{SUFFIX}")) else None
