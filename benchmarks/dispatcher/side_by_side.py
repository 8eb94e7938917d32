"""``python -m benchmarks.dispatcher.side_by_side``: one batch by agentcore-rl-toolkit's RolloutClient and by ours.

The same agents on the same emulator and S3, one client after the other in one run: wall time over what the rate alone
would allow, how long after an agent was done the caller had its result, requests to S3 and calls to the runtime per
rollout, CPU of the client (ours: client and dispatcher), and sessions left running. The toolkit has an environment of
its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from benchmarks.dispatcher.scale import BUCKET, Ports, percentile, until_up
from benchmarks.gateway import baseline, machine
from benchmarks.gateway.environments import interpreter
from benchmarks.gateway.process import Process
from benchmarks.gateway.table import markdown

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/sleeper-a1b2c3"
HERE = Path(__file__).parent
COLUMNS = {
    "client": "client", "results": "results", "wall_s": "wall, s", "over_ideal": "over the ideal",
    "notice_p50_ms": "the caller has it after, ms, median", "notice_p99_ms": "p99", "s3": "S3 requests a rollout",
    "runtime": "runtime calls a rollout", "cpu_ms": "CPU ms a rollout", "left": "sessions left running",
}  # fmt: skip


def ideal_s(sleeps: Sequence[float], tps: float) -> float:
    """When the last result could be there at best: starts evenly spaced by the rate, everything else at once."""
    return max(i / tps + s for i, s in enumerate(sleeps))


class Scene:
    """S3 and the emulator, anew for each client."""

    def __init__(self, folder: Path, tps: float) -> None:
        self.folder, self._cores = folder, machine.cores()
        self.ports = Ports("s3", "emulator", "dispatcher")
        self.environment = {
            "AWS_ENDPOINT_URL_S3": self.url("s3"), "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": self.url("emulator"),
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-west-2",
        }  # fmt: skip
        os.environ.pop("AWS_PROFILE", None)
        agent = {
            "arn": ARN, "command": [sys.executable, "-I", "-S", str(HERE / "sleeping_agent.py")],
            "env": {"AWS_ENDPOINT_URL_S3": self.url("s3")},
        }  # fmt: skip
        (folder / "agents.json").write_text(json.dumps({"agents": [agent]}))
        emulator = {
            "ROLLWAY_EMULATOR_PORT": str(self.ports["emulator"]), "ROLLWAY_EMULATOR_TPS": str(tps),
            "ROLLWAY_EMULATOR_PING_INTERVAL_S": "30", "ROLLWAY_EMULATOR_STATE_DIR": str(folder / "emulator"),
        }  # fmt: skip
        python, beside = [sys.executable, "-m"], self._cores.client
        self._beside = [
            self._run("s3", [*python, "benchmarks.dispatcher.counting_s3", str(self.ports["s3"])], beside, {}),
            self._run(
                "emulator", [*python, "rollway_emulator", "--agents", str(folder / "agents.json")], beside, emulator
            ),
        ]
        self.subjects: list[Process] = []

    def url(self, name: str) -> str:
        return self.ports.url(name)

    def _run(self, name: str, command: list[str], core: int, env: dict[str, str], *, pipe: bool = False) -> Process:
        root = HERE.parents[1]
        paths = os.pathsep.join(str(root / p) for p in ("services", "shared", "deploy"))
        given = {**self.environment, **env, "PYTHONPATH": f"{HERE.parent / 'gateway/settle'}{os.pathsep}{paths}"}
        return Process(command, core=core, log=self.folder / f"{name}.log", environment=given, cwd=root, pipe=pipe)

    def subject(self, name: str, command: list[str], env: dict[str, str], *, pipe: bool = False) -> Process:
        """A measured process, on the core that is theirs alone."""
        self.subjects.append(self._run(name, command, self._cores.subject, env, pipe=pipe))
        return self.subjects[-1]

    def calls(self) -> int:
        """Invocations and stops that reached the emulator, refused ones too."""
        log = (self.folder / "emulator.log").read_text(errors="replace")
        return len(re.findall(r'"event": ?"call"', log))

    def stop(self) -> None:
        for process in (*reversed(self.subjects), *reversed(self._beside)):
            process.stop()
        self.ports.close()


async def measure(client: str, sleeps: list[float], tps: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), tps)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
                return await _run(scene, http, client, sleeps, tps)
        finally:
            scene.stop()


async def _run(
    scene: Scene, http: aiohttp.ClientSession, client: str, sleeps: list[float], tps: float
) -> dict[str, Any]:
    await until_up(http, scene.url("s3") + "/_counts")
    async with http.put(f"{scene.url('s3')}/{BUCKET}") as answer:
        answer.raise_for_status()
    await until_up(http, scene.url("emulator") + "/health")
    plan: dict[str, Any] = {"arn": ARN, "bucket": BUCKET, "sleeps": sleeps, "tps": tps}
    python = interpreter("agentcore") if client == "toolkit" else Path(sys.executable)
    if client == "rollway":
        plan["dispatcher"] = scene.url("dispatcher")
        settings = {
            "ROLLWAY_DISPATCHER_PORT": str(scene.ports["dispatcher"]),
            "ROLLWAY_DISPATCHER_S3_ENDPOINT_URL": scene.url("s3"), "ROLLWAY_DISPATCHER_S3_BUCKET": BUCKET,
            "ROLLWAY_DISPATCHER_STATE_PATH": str(scene.folder / "state.sqlite3"),
        }  # fmt: skip
        scene.subject("dispatcher", [sys.executable, "-m", "rollway_dispatcher"], settings)
        await until_up(http, scene.url("dispatcher") + "/health")
    idle = sum(p.cpu_s() for p in scene.subjects)  # a server's start is not a batch's
    caller = scene.subject(
        "client", [str(python), str(HERE / "batch_client.py"), client, json.dumps(plan)], {}, pipe=True
    )
    said = json.loads(await asyncio.to_thread(caller.first_line))
    cpu = sum(p.cpu_s() for p in scene.subjects) - idle
    left = await _left(scene, http, patience_s=60 if client == "rollway" else 0)
    async with http.get(scene.url("s3") + "/_counts") as answer:
        counts: dict[str, int] = json.loads(await answer.text())
    results, n = said["results"], len(sleeps)
    good = [r for r in results if r["done_at"] is not None]
    notice = [r["at"] - r["done_at"] for r in good]
    wall = max(r["at"] for r in results) - said["began"]
    return {
        "client": client, "results": f"{len(good)} of {n}", "wall_s": wall, "over_ideal": wall / ideal_s(sleeps, tps),
        "notice_p50_ms": 1e3 * statistics.median(notice), "notice_p99_ms": 1e3 * percentile(notice, 0.99),
        "s3": (sum(counts.values()) - 1) / n, "runtime": scene.calls() / n, "cpu_ms": 1e3 * cpu / n, "left": left,
        "counts": counts,
    }  # fmt: skip


async def _left(scene: Scene, http: aiohttp.ClientSession, patience_s: float) -> int:
    """Sessions that still run; ``patience_s``: how long to let a client finish stopping them."""
    until = time.monotonic() + patience_s
    while True:
        async with http.get(scene.url("emulator") + "/health") as answer:
            sessions: int = (await answer.json())["sessions"]
        if sessions == 0 or time.monotonic() >= until:
            return sessions
        await asyncio.sleep(0.5)


def text(recorded: Mapping[str, Any]) -> str:
    """Of a recorded run, in Markdown."""

    def cell(value: Any) -> str:
        return str(value) if isinstance(value, str | int) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    return markdown(list(COLUMNS.values()), [[cell(row[name]) for name in COLUMNS] for row in recorded["rows"]])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.dispatcher.side_by_side", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--tps", type=float, default=25.0)
    parser.add_argument("--shortest", type=float, default=15.0, help="seconds that the quickest agent sleeps (15)")
    parser.add_argument("--longest", type=float, default=60.0)
    parser.add_argument("--record", action="store_true", help="write the run to baselines/side_by_side.json")
    args = parser.parse_args()
    draw = random.Random(1)
    sleeps = [round(draw.uniform(args.shortest, args.longest), 2) for _ in range(args.rollouts)]
    rows = []
    for client in ("toolkit", "rollway"):
        print(client, file=sys.stderr, flush=True)
        rows.append(uvloop.run(measure(client, sleeps, args.tps)))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    content = {"machine": machine.described(), "rows": rows}
    print(text(content))
    if args.record:
        baseline.save(baseline.FOLDER / "side_by_side.json", **content)


if __name__ == "__main__":
    main()
