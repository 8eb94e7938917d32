"""The machine a run was made on, and which cores its processes get."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cores:
    """One core for the measured process alone where there are two; load client and engine share the others."""

    subject: int
    client: int
    engine: int


def cores() -> Cores:
    """Raises:
    RuntimeError: fewer than two cores, or a system without CPU affinity."""
    if not hasattr(os, "sched_getaffinity"):
        raise RuntimeError("the benchmarks pin processes to cores, which needs Linux")
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise RuntimeError("the benchmarks need two cores: one for the gateway, one for the load")
    return Cores(subject=mine[-1], client=mine[0], engine=mine[1] if len(mine) > 2 else mine[0])


def described() -> dict[str, object]:
    """Of the machine, without its name."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.split()[1]) / 2**20, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load_average_1m": round(os.getloadavg()[0], 1),
    }
