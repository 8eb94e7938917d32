"""``python -m benchmarks.dispatcher.scale``: N concurrent rollouts of a sleeping agent in one dispatcher process.

A sweep over N. Per run: scheduling lag, how long after an agent began to save its result that was noticed and
published, what the dispatcher's loop made /health wait meanwhile, CPU and memory per rollout, S3 requests per rollout,
and whether every result came once. Stand-ins for S3 (`load_s3`) and for the containers (`sleepers`) run beside it with
this process, on the other core; the load average says what else the machine had to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from benchmarks.gateway import baseline, machine
from benchmarks.gateway.process import Process
from benchmarks.gateway.table import markdown
from rollway_dispatcher.lag import WINDOW_S
from rollway_kit.serve import bind

BUCKET = "results"
COLUMNS = {
    "n": "rollouts at once", "pushes": "agents report", "results": "results, each once",
    "lag_p99_ms": "scheduling lag, ms, p99 of the worst 10 s",
    "notice_p50_ms": "noticed after, ms, median", "notice_p99_ms": "p99",
    "publish_p99_ms": "published after noticing, ms, p99", "health_p99_ms": "/health, ms, p99",
    "cpu_ms": "CPU ms a rollout", "kib": "KiB a rollout, all running", "kib_peak": "KiB a rollout, at most",
    "s3": "S3 requests a rollout, agents' own put included", "load_average_1m": "load average, 1 min",
}  # fmt: skip
HEARTBEAT_S = 5.0


class Ports:
    """One for each of these, by name, which nobody else is given until they are closed."""

    def __init__(self, *names: str) -> None:
        self._held = {name: bind("127.0.0.1", 0) for name in names}

    def __getitem__(self, name: str) -> int:
        port: int = self._held[name].getsockname()[1]
        return port

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self[name]}"

    def close(self) -> None:
        for sock in self._held.values():
            sock.close()


def percentile(values: list[float], p: float) -> float:
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


async def until_up(http: aiohttp.ClientSession, url: str) -> None:
    """Until a GET is answered with 200.

    Raises:
        TimeoutError: not within a minute.
    """
    async with asyncio.timeout(60):
        while True:
            try:
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


class Scene:
    """The three processes of one run."""

    def __init__(self, folder: Path, cores: machine.Cores) -> None:
        self._ports = Ports("s3", "sleepers", "dispatcher")
        s3 = self._ports.url("s3")
        aws = {
            "AWS_ENDPOINT_URL_S3": s3, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        prefix = "ROLLWAY_DISPATCHER_"
        settings = {
            "PORT": str(self._ports["dispatcher"]), "S3_ENDPOINT_URL": s3, "S3_BUCKET": BUCKET, "REGION": "us-east-1",
            "STATE_PATH": str(folder / "state.sqlite3"), "MAX_CONCURRENT": "100000",
            "HEARTBEAT_INTERVAL_S": str(HEARTBEAT_S),
        }  # fmt: skip
        os.environ.pop("AWS_PROFILE", None)
        root = str(Path(__file__).parents[2])
        python = [sys.executable, "-m"]

        def run(name: str, module: str, core: int, env: dict[str, str], *arguments: str) -> Process:
            log = folder / f"{name}.log"
            return Process([*python, module, *arguments], core=core, log=log, environment=env, cwd=Path(root))

        self.s3 = run("s3", "benchmarks.dispatcher.load_s3", cores.client, aws, str(self._ports["s3"]))
        self.sleepers = run(
            "sleepers", "benchmarks.dispatcher.sleepers", cores.client, aws, str(self._ports["sleepers"])
        )
        ours = {prefix + name: value for name, value in settings.items()}
        self.dispatcher = run("dispatcher", "rollway_dispatcher", cores.subject, {**aws, **ours})

    def url(self, name: str) -> str:
        return self._ports.url(name)

    async def ready(self, http: aiohttp.ClientSession) -> None:
        for name, path in (("s3", "/_counts"), ("sleepers", "/ping")):
            await until_up(http, self.url(name) + path)
        async with http.put(f"{self.url('s3')}/{BUCKET}") as answer:
            answer.raise_for_status()
        await until_up(http, self.url("dispatcher") + "/health")

    def beside_s(self) -> float:
        """CPU seconds of what is not the dispatcher, this process too."""
        return self.s3.cpu_s() + self.sleepers.cpu_s() + time.process_time()

    def stop(self) -> None:
        for process in (self.dispatcher, self.sleepers, self.s3):
            process.stop()
        self._ports.close()


def request(scene: Scene, n: int, sleep_s: float, *, pushes: bool, together: bool) -> dict[str, Any]:
    """Groups of eight; the agents end evenly over the second half of the time, or once all of them run, if that is
    later and ``together``."""
    groups = []
    for i in range(-(-n // 8)):
        size = min(8, n - 8 * i)
        spread = sleep_s * (0.5 + 0.5 * (i * 8 / n))
        payload = {"sleep_s": spread, "pushes": pushes, "together": n if together else 0}
        groups.append({"group_id": f"g{i}", "n": size, "payload": payload})
    runtime = {"kind": "http", "urls": [scene.url("sleepers")], "sessions_per_url": n}
    return {"groups": groups, "runtime": runtime, "capture": None, "limits": {"rollout_timeout_s": 3600}}


@dataclass
class Pulse:
    """What /health said, and how long it took to."""

    waits: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)

    async def watch(self, http: aiohttp.ClientSession, url: str) -> None:
        while True:
            began = time.perf_counter()
            async with http.get(url) as answer:
                lag = (await answer.json())["lag_p99_ms"]
            self.waits.append(time.perf_counter() - began)
            if lag is not None:
                self.lags.append(lag)
            await asyncio.sleep(0.5)


async def measure(
    n: int, sleep_s: float, cores: machine.Cores, *, pushes: bool = True, together: bool = False
) -> dict[str, Any]:
    """One run. Binds this process to the core of what runs beside the dispatcher."""
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), cores)
        os.sched_setaffinity(0, {cores.client})
        try:
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(timeout=timeout) as http:
                await scene.ready(http)
                return await _run(scene, http, request(scene, n, sleep_s, pushes=pushes, together=together))
        finally:
            scene.stop()


async def _run(scene: Scene, http: aiohttp.ClientSession, asked: dict[str, Any]) -> dict[str, Any]:
    n, pushes = sum(group["n"] for group in asked["groups"]), asked["groups"][0]["payload"]["pushes"]
    await scene.dispatcher.settle()
    scene.dispatcher.forget_peak()
    memory, cpu, beside, began = scene.dispatcher.resident(), scene.dispatcher.cpu_s(), scene.beside_s(), time.time()
    pulse = Pulse()
    base = scene.url("dispatcher")
    watching = asyncio.create_task(pulse.watch(http, f"{base}/health"), name="health")
    async with http.post(f"{base}/v1/batches", json=asked) as answer:
        answer.raise_for_status()
        batch = (await answer.json())["batch_id"]
    kept = await _kept(scene, http, n, base, batch)
    results = await _results(http, base, batch)
    cpu, beside, wall = scene.dispatcher.cpu_s() - cpu, scene.beside_s() - beside, time.time() - began
    await asyncio.sleep(WINDOW_S)  # until the lag of the last seconds is shown
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    async with http.get(scene.url("s3") + "/_counts") as answer:
        counts: dict[str, int] = await answer.json()
    async with http.get(scene.url("sleepers") + "/counts") as answer:
        agents = await answer.json()
    good = [r for r in results if r["state"] == "succeeded"]
    notice = [r["timings"]["noticed_at"] - r["result"]["done_at"] for r in good]
    publish = [r["timings"]["finished_at"] - r["timings"]["noticed_at"] for r in good]
    once = len({r["rollout_id"] for r in results}) == len(results) == len(good) == n
    return {
        "n": n, "pushes": "yes" if pushes else "no", "results": f"{len(good)}{'' if once else ' (WRONG)'}",
        "lag_p99_ms": max(pulse.lags),
        "notice_p50_ms": 1e3 * statistics.median(notice), "notice_p99_ms": 1e3 * percentile(notice, 0.99),
        "publish_p99_ms": 1e3 * percentile(publish, 0.99), "health_p99_ms": 1e3 * percentile(pulse.waits, 0.99),
        "cpu_ms": 1e3 * cpu / n, "kib": (kept - memory) / 1024 / n,
        "kib_peak": (scene.dispatcher.peak_resident() - memory) / 1024 / n,
        "s3": (sum(counts.values()) - 1) / n, "beside": f"{beside / wall:.0%}", "subject": f"{cpu / wall:.0%}",
        "wall_s": wall, "load_average_1m": round(os.getloadavg()[0], 1), "agents": agents, "counts": counts,
        "failures": Counter(r["failure"]["message"] for r in results if r["failure"]),
    }  # fmt: skip


async def _kept(scene: Scene, http: aiohttp.ClientSession, n: int, base: str, batch: str) -> int:
    """Resident bytes when all run, or as many as ever do at once. Nothing is collected for it: that would hold up the
    loop that is measured."""
    while True:
        async with http.get(f"{base}/v1/batches/{batch}") as answer:
            counts = (await answer.json())["counts"]
        if counts.get("running", 0) == n or counts.get("succeeded", 0) > 0 or counts.get("failed", 0) > 0:
            return scene.dispatcher.resident()
        await asyncio.sleep(0.5)


async def _results(http: aiohttp.ClientSession, base: str, batch: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor, finished = 0, False
    while not finished:
        query = {"cursor": str(cursor), "limit": "500", "wait_s": "20"}
        async with http.get(f"{base}/v1/batches/{batch}/results", params=query) as answer:
            answer.raise_for_status()
            page = await answer.json()
        found += [r["rollout"] for r in page["results"]]
        cursor, finished = page["cursor"], page["finished"]
    return found


def text(recorded: Mapping[str, Any]) -> str:
    """Of a recorded run, in Markdown."""

    def cell(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    return markdown(list(COLUMNS.values()), [[cell(row[name]) for name in COLUMNS] for row in recorded["rows"]])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.dispatcher.scale", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", default="100,500,1000,2500,5000")
    parser.add_argument("--sleep", type=float, default=90.0, help="seconds that the longest agent sleeps (90)")
    parser.add_argument("--silent", default="1000", help="sizes at which agents never report, so that listing notices")
    parser.add_argument("--together", action="store_true", help="no agent ends before all of them have run at once")
    parser.add_argument("--record", action="store_true", help="write the run to baselines/scale.json")
    args = parser.parse_args()
    rows, cores, described = [], machine.cores(), machine.described()
    sizes = [(int(n), True) for n in args.sizes.split(",") if n]
    sizes += [(int(n), False) for n in args.silent.split(",") if n]
    for n, pushes in sizes:
        print(f"{n} rollouts", file=sys.stderr, flush=True)
        rows.append(uvloop.run(measure(n, args.sleep, cores, pushes=pushes, together=args.together)))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    content = {"machine": described, "rows": rows}
    print(text(content))
    if args.record:
        baseline.save(baseline.FOLDER / "scale.json", **content)


if __name__ == "__main__":
    main()
