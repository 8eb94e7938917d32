"""Where a run stands, told by what it has written so far and by the dispatcher."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollway_local import leash
from rollway_local.demo_report import read_lines
from rollway_local.demo_trainer import RunFiles


@dataclass(frozen=True, slots=True)
class Moment:
    phase: str
    step: int
    """The one under way, from 1; 0 before the first."""
    done: int
    """Rollouts of the step that have ended."""
    total: int


def look(files: RunFiles, dispatcher: Mapping[str, str], steps: int, rollouts: int) -> Moment:
    """The run's state now. ``dispatcher``: of stack.json."""
    synced = len(read_lines(files.weights))
    batches = [line for line in read_lines(files.batches) if not line["validate"]]
    trained = len(read_lines(files.trainer))
    if trained >= steps:
        return Moment("done", steps, rollouts, rollouts)
    if not synced:
        return Moment("loading trainer and engine", 0, 0, rollouts)
    if len(batches) > trained:
        return Moment("training", trained + 1, rollouts, rollouts)
    posted = _batches(dispatcher)
    running = [b for b in posted if b["state"] == "running"]
    if not running and len(posted) > len(batches):
        return Moment("collecting rollouts", trained + 1, rollouts, rollouts)
    if not running:
        return Moment("starting rollouts", trained + 1, 0, rollouts)
    counts = running[-1]["counts"]
    ended = sum(counts.get(state, 0) for state in ("succeeded", "failed", "cancelled"))
    return Moment("rollouts", trained + 1, ended, running[-1]["total"])


def _batches(dispatcher: Mapping[str, str]) -> list[dict[str, Any]]:
    """The dispatcher's batches; none when it does not answer in time (it is asked again at once)."""
    where = urlsplit(dispatcher["url"])
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=5)
    try:
        connection.request("GET", "/v1/batches", headers={"authorization": f"Bearer {dispatcher['api_key']}"})
        found: list[dict[str, Any]] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return []
    finally:
        connection.close()
    return found


def memory_gib(*roots: int) -> float:
    """Memory of these processes and all below them, in GiB: proportional set size, so that shared pages count once."""
    kib = 0
    for root in roots:
        for pid in (root, *leash.descendants(root)):
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue  # it ended
            kib += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kib / 2**20
