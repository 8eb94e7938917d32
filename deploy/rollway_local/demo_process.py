"""A process of the demo's, on the stack's leash: whatever it starts ends with it, and it ends with the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rollway_local import leash

SHOWN_LINES = 25


class Leashed:
    """Started when made; ``with`` ends it. Its output goes to ``log``."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, cwd: Path) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), f"{log}.pid", *command],
                env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the leash, above every process of this one's."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, 128 + n when signal n ended it; None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left after the leash's grace time."""
        if self.status is None:
            self._process.terminate()
        try:
            self._process.wait(leash.GRACE_S + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
