"""``python -m benchmarks.dispatcher.simulation``: the policies side by side on a simulated cluster.

The scheduler is the dispatcher's own; the cluster is `simulated_batch`'s. All policies meet the same agents: an
attempt's work, cold start and fate are drawn from its rollout's id.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.dispatcher.cluster import Cluster
from benchmarks.dispatcher.simulated_batch import Outcomes, Simulation
from benchmarks.gateway import baseline, machine
from benchmarks.gateway.table import markdown
from rollway_wire.batch import Policy

POLICIES: dict[str, tuple[Policy, dict[str, float]]] = {
    "default": (Policy(), {}),
    "gang": (Policy(admission="gang"), {}),
    "extra 2": (Policy(extra=2), {}),
    "hedge 1": (Policy(extra=1, extra_start="straggler"), {}),
    "deadline 4 h": (Policy(deadline_s=4 * 3600), {}),
    "extra 2, deadline 4 h": (Policy(extra=2, deadline_s=4 * 3600), {}),
    "holds at 1.2× engines": (Policy(), {"holds_at": 1.2}),
}
CLUSTERS = {
    "10k": Cluster(groups=1500, n=8, max_concurrent=10_000, engine_slots=6_000),
    "1k": Cluster(groups=256, n=8, max_concurrent=1_000, engine_slots=600),
    "small": Cluster(groups=16, n=4, max_concurrent=32, engine_slots=24),
}


def row(name: str, out: Outcomes, groups: int, seconds: float) -> list[str]:
    return [
        name, f"{out.decided} / {groups}", f"{out.half_s / 3600:.2f}", f"{out.all_s / 3600:.2f}",
        f"{out.sessions:,}", f"{out.session_hours:,.0f}", f"{out.wasted_hours:,.0f}",
        f"{1e6 * seconds / max(1, out.sessions):.0f}",
    ]  # fmt: skip


HEAD = [
    "policy", "groups decided", "half of them, h", "all, h", "sessions", "session-hours", "of them wasted",
    "scheduler and simulation, µs a session",
]  # fmt: skip


def run(cluster: Cluster) -> list[list[str]]:
    lines = []
    for name, (policy, changed) in POLICIES.items():
        began = time.process_time()
        out = Simulation(replace(cluster, **changed), policy).run()  # type: ignore[arg-type]
        lines.append(row(name, out, cluster.groups, time.process_time() - began))
    return lines


def text(recorded: Mapping[str, Any]) -> str:
    """Of a recorded run, in Markdown."""
    return markdown(HEAD, recorded["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.dispatcher.simulation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--cluster", choices=list(CLUSTERS), default="10k")
    parser.add_argument("--record", action="store_true", help="write the run to baselines/simulation.json")
    args = parser.parse_args()
    content = {"machine": machine.described(), "cluster": args.cluster, "rows": run(CLUSTERS[args.cluster])}
    print(text(content))
    if args.record:
        baseline.save(baseline.FOLDER / "simulation.json", **content)


if __name__ == "__main__":
    main()
