"""A measured process: started on its core, its CPU time and memory read, stopped."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = (Path(__file__).parent / "settle", ROOT / "services", ROOT / "shared")
"""Before anything installed: this checkout is what is measured, wherever it lies."""
PAGE = os.sysconf("SC_PAGE_SIZE")
ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
"""Cores that this process was given, before any of it was bound to one."""


class StartFailed(RuntimeError):
    """A process ended or did not come up; the message holds the end of its log."""


_PR_SET_PDEATHSIG = 1


def _bound(core: int | None) -> None:
    """In the child: stay on one core, if one is given, and end with the process that started it."""
    os.sched_setaffinity(0, ALL if core is None else {core})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A process and what it starts. Everything it prints goes to ``log``."""

    def __init__(
        self, command: Sequence[str], *, core: int | None, log: Path, environment: Mapping[str, str] | None = None,
        cwd: Path | None = None, pipe: bool = False,
    ) -> None:  # fmt: skip
        self._settled = log.with_suffix(".settled")
        self._delays = log.with_suffix(".delays")
        self._log = log
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLWAY_", "RLLM_", "PYTHON"))}
        extra = {
            "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
            "BENCH_SETTLED": str(self._settled),
            "BENCH_DELAYS": str(self._delays),
            "PYTHONUNBUFFERED": "1",
        }
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command), preexec_fn=lambda: _bound(core), env={**clean, **extra, **(environment or {})}, cwd=cwd,
                stdout=subprocess.PIPE if pipe else out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def first_line(self) -> str:
        """What the process says first, where it was started with ``pipe``."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise StartFailed(f"said nothing: {self.log_end()}")
        return line

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def tree(self) -> list[int]:
        """The process and its living descendants."""
        parents: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                after = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
            parents.setdefault(int(after[1]), []).append(int(stat.parent.name))
        found = [self.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def cpu_s(self) -> float:
        """CPU seconds, user and system, all threads, since the start; of the tree."""
        return sum(self.shares().values())

    def shares(self) -> dict[int, float]:
        """CPU seconds of each process of the tree, by its id."""
        return {pid: time.clock_gettime((~pid << 3) | 2) for pid in self.tree()}

    def resident(self) -> int:
        """Resident bytes of the tree."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.tree()) * PAGE

    def forget_peak(self) -> None:
        """Have `peak_resident` begin anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_resident(self) -> int:
        """The most resident bytes at any time, of the process alone."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    async def settle(self) -> None:
        """Have a Python process collect its garbage and give free memory back; it says when it has."""
        before = self._settled.stat().st_size if self._settled.exists() else 0
        os.kill(self.pid, signal.SIGUSR2)
        async with asyncio.timeout(60):
            while not self._settled.exists() or self._settled.stat().st_size == before:  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.02)

    def watch_loop(self) -> None:
        """From here on a Python process measures how late its event loop is; `loop_delays` ends that."""
        self._delays.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)

    async def loop_delays(self) -> list[float]:
        """Seconds that a timer of each millisecond was late."""
        os.kill(self.pid, signal.SIGUSR1)
        async with asyncio.timeout(60):
            while not self._delays.exists():  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.02)
        delays: list[float] = json.loads(self._delays.read_text())
        return delays

    def stop(self) -> None:
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
