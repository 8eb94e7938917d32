"""Everything around the dispatcher: S3, a gateway, the AgentCore emulator, each behind a faulty proxy, and what is
counted there. The soak's own process serves all of it, so that a kill can be timed by what passes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from tests.chaos import faults
from tests.dispatcher.harness import ARN, agent_pids
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.faulty_proxy import FaultyProxy
from tests.kit.object_storage import Bucket
from tests.kit.services import Service, Services

ROOT = Path(__file__).parents[2]
AGENT = ["-S", str(ROOT / "tests/chaos/agent.py")]
AGENT_ENV = {"PYTHONPATH": str(ROOT)}
TPS = 60.0
SESSIONS = 28
"""Quota of the emulator: a little less than what the dispatcher would like to run."""


@dataclass
class Tripwire:
    """Calls ``spring`` when the next request of a kind passes: before it is passed on, or after its answer is there."""

    armed: tuple[str, bool] | None = None
    spring: Callable[[], None] = lambda: None

    def touch(self, request: web.BaseRequest, *, after: bool) -> None:
        if self.armed == (faults.kind_of(request), after):
            self.armed = None
            self.spring()


@dataclass
class World:
    folder: Path
    bucket: Bucket
    gateway: ScriptedGateway
    emulator: Service
    s3: FaultyProxy
    runtime: FaultyProxy
    gateway_door: FaultyProxy
    front: FaultyProxy
    http: httpx.AsyncClient
    """To the emulator's own routes."""
    replicas: list[str]
    """URLs of the dispatchers that serve; the front tries them in any order."""
    dice: random.Random
    tripwire: Tripwire = field(default_factory=Tripwire)
    done: Counter[str] = field(default_factory=Counter)
    """What was done to containers and to the runtime."""
    killed: set[str] = field(default_factory=set)
    """Sessions whose container was killed."""
    storm: asyncio.Task[None] | None = None

    @property
    def diary(self) -> Path:
        return self.folder / "diary"

    @property
    def state_path(self) -> Path:
        return self.folder / "state" / "dispatcher.sqlite3"

    def faults(self) -> Counter[str]:
        proxies = (self.s3, self.runtime, self.gateway_door, self.front)
        return Counter(self.done) + sum((p.counts for p in proxies), Counter[str]())

    async def live_sessions(self) -> list[str]:
        """At the emulator, and of local processes."""
        seen = (await self.http.get("/_emulator/sessions")).raise_for_status().json()["sessions"]
        pids = await asyncio.to_thread(agent_pids, self.state_path)
        return [s["session_id"] for s in seen] + [f"process {pid}" for pid in pids]

    async def misbehave(self) -> None:
        """Until cancelled: containers die, and now and then the runtime throttles almost everything."""
        dice = random.Random(self.dice.random())
        while True:
            await asyncio.sleep(dice.uniform(0.4, 1.6))
            await self._kill_one(dice)
            if dice.random() < 0.06:
                self.done["throttling storm"] += 1
                await self._chaos(throttle={"probability": 0.9})
                await asyncio.sleep(dice.uniform(1.0, 3.0))
                await self._chaos()

    async def _kill_one(self, dice: random.Random) -> None:
        if dice.random() < 0.2:
            if pids := await asyncio.to_thread(agent_pids, self.state_path):
                self._kill_process(dice.choice(pids))
            return
        seen = (await self.http.get("/_emulator/sessions")).raise_for_status().json()["sessions"]
        at_work = [s["session_id"] for s in seen if await asyncio.to_thread(self._pushes, s["session_id"])]
        if at_work:
            session_id = dice.choice(at_work)
            self.killed.add(session_id)
            answer = await self.http.delete(f"/_emulator/sessions/{session_id}")
            self.done["container killed"] += answer.status_code == 204

    def _pushes(self, session_id: str) -> bool:
        """Whether its agent has begun and pushes: of one that does not, only the time limit shows the end."""
        with suppress(FileNotFoundError):
            return '"pushes": true' in (self.diary / session_id).read_text()
        return False

    def _kill_process(self, pid: int) -> None:
        environ = Path(f"/proc/{pid}/environ")
        try:
            pairs = environ.read_bytes().split(b"\0")
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return  # it has just ended
        self.killed |= {p.decode().partition("=")[2] for p in pairs if p.startswith(b"ROLLWAY_SESSION_ID=")}
        self.done["local agent killed"] += 1

    async def calm(self) -> None:
        """No more storms."""
        await self._chaos()

    async def _chaos(self, **switches: Any) -> None:
        always = {"fail_start": {"probability": 0.03}, "slow_start": {"probability": 0.05, "seconds": 1.0}}
        answer = await self.http.put(f"/_emulator/chaos/{ARN}", json=always | switches)
        answer.raise_for_status()


@asynccontextmanager
async def made(services: Services, bucket: Bucket, folder: Path, seed: int, *, silences: float) -> AsyncIterator[World]:
    """The world of one soak in ``folder``."""
    dice = random.Random(seed)
    (folder / "diary").mkdir(parents=True)
    (folder / "state").mkdir()
    wire, replicas = Tripwire(), list[str]()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        gateway = await enter(ScriptedGateway())

        async def proxy(targets: Callable[[], list[str]], draw: faults.Draw) -> FaultyProxy:
            return await enter(
                FaultyProxy(targets, draw, lambda r: wire.touch(r, after=False), lambda r: wire.touch(r, after=True))
            )

        def drawing() -> random.Random:
            return random.Random(dice.random())

        s3 = await proxy(lambda: [bucket.endpoint_url], faults.of_s3(drawing(), silences))
        emulator = await _emulator(services, s3.url, folder)
        runtime = await proxy(lambda: [emulator.url], faults.of_runtime(drawing()))
        door = await proxy(lambda: [gateway.url], faults.of_gateway(drawing()))
        order = drawing()
        front = await proxy(lambda: order.sample(replicas, len(replicas)), faults.of_front(drawing()))
        http = await enter(httpx.AsyncClient(base_url=emulator.url, timeout=60, trust_env=False))
        world = World(folder, bucket, gateway, emulator, s3, runtime, door, front, http, replicas, dice, tripwire=wire)
        await world.calm()
        yield world


async def _emulator(services: Services, s3_url: str, folder: Path) -> Service:
    agent = {
        "arn": ARN, "command": ["{python}", *AGENT], "env": {**AGENT_ENV, "AWS_ENDPOINT_URL_S3": s3_url},
    }  # fmt: skip
    listed = folder / "agents.json"
    await asyncio.to_thread(listed.write_text, json.dumps({"agents": [agent]}))
    env = {
        "ROLLWAY_EMULATOR_TPS": str(TPS), "ROLLWAY_EMULATOR_BURST": str(TPS),
        "ROLLWAY_EMULATOR_MAX_SESSIONS": str(SESSIONS), "ROLLWAY_EMULATOR_STOP_GRACE_S": "0.5",
    }  # fmt: skip
    arguments = ["-m", "rollway_emulator", "--agents", str(listed), "--state-dir", str(folder / "emulator")]
    return await services.start_async("emulator", arguments, env=env)
