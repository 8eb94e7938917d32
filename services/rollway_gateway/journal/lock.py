"""One process per folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rollway_gateway.journal.problems import JournalRefused


def lock_folder(folder: Path) -> int:
    """An open file that holds the folder until it is closed or the process ends, however it ends.

    Raises:
        JournalRefused: another process holds it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise JournalRefused(f"the journal's folder {folder} cannot be used: {e}") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise JournalRefused(
            f"the journal's folder {folder} is in use by process {holder}: each gateway process needs its own"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
