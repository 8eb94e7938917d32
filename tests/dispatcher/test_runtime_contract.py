"""What every runtime owes the executor (`runtimes/runtime.py`), asked of each of them in the same words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from rollway_dispatcher.runtimes import containers
from rollway_dispatcher.runtimes.registry import open_runtimes
from rollway_dispatcher.runtimes.runtime import Runtime, StartError
from rollway_wire.batch import RuntimeSpec
from rollway_wire.failures import FailureType
from tests.dispatcher.harness import AGENTS, ARN, runs
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket
from tests.kit.ports import HeldPort
from tests.kit.services import Service, Services

AGENT = str(AGENTS / "contract_agent.py")
KINDS = ["process", "http", "agentcore", "kubernetes"]
ENDS_AGENTS = ["process", "agentcore", "kubernetes"]
"""http has no call that ends one rollout in a container: a stop frees the slot."""
SEES_DEATH = ["process", "http", "kubernetes"]
"""AgentCore has no call that tells; heartbeats do."""


@dataclass
class Place:
    """A runtime with an agent in it, and how to look behind it."""

    kind: str
    runtime: Runtime
    runs_dir: Path
    bucket: Bucket
    broken: dict[str, Any]
    """A spec whose agent cannot run."""
    of: Callable[[dict[str, Any]], Runtime]
    stand_in: Service | None = None

    async def start(self, session_id: str, **payload: Any) -> Any:
        config = {"exp_id": "e", "input_id": "g", "s3_bucket": self.bucket.name}
        body = {"runs": str(self.runs_dir), "reward": 1, "_rollout": config, **payload}
        return json.loads(await self.runtime.start(session_id, json.dumps(body).encode()))

    def pids(self, session_id: str) -> list[int]:
        """Agent processes that run this session, found by the file each run writes to."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                argv, env = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
                zombie = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                continue
            if AGENT.encode() in argv and self.bucket.name.encode() in env and not zombie:
                found.append(int(folder.name))
        return found


def session() -> str:
    return str(uuid.uuid4())


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, services: Services, s3: Bucket, tmp_path: Path, runs_dir: Path,
    emulator: Callable[..., Awaitable[Service]], monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Place]:  # fmt: skip
    monkeypatch.setattr(containers, "PING_EVERY_S", 0.2)
    # The bucket's name in the environment tells this test's agents from all others on the machine.
    env = {"AWS_ENDPOINT_URL_S3": s3.endpoint_url, "BUCKET": s3.name}
    makers = {"process": _process, "http": _http, "agentcore": _agentcore, "kubernetes": _kubernetes}
    with ExitStack() as held:
        spec, broken, stand_in = await makers[request.param](services, env, emulator, held)
        async with open_runtimes(tmp_path / "agents", s3.endpoint_url, keep_processes=False) as runtimes:

            def of(described: dict[str, Any]) -> Runtime:
                return runtimes.of(TypeAdapter(RuntimeSpec).validate_python(described))

            yield Place(request.param, of(spec), runs_dir, s3, broken, of, stand_in)


async def _process(*given: Any) -> tuple[dict[str, Any], dict[str, Any], Service | None]:
    _, env, *_ = given
    spec = {"kind": "process", "command": [sys.executable, AGENT], "env": env}
    return spec, {**spec, "command": ["/nowhere/agent"]}, None


async def _http(*given: Any) -> tuple[dict[str, Any], dict[str, Any], Service | None]:
    services, env, _, held = given
    port = held.enter_context(HeldPort())
    container = services.spawn("container", [AGENT], env={**env, "PORT": str(port.number)})
    await eventually(lambda: _answers(f"{port.url}/ping"), "the container answers", 120)
    return (
        {"kind": "http", "urls": [port.url], "sessions_per_url": 8},
        {"kind": "http", "urls": ["http://127.0.0.1:1"]},
        container,
    )


async def _agentcore(*given: Any) -> tuple[dict[str, Any], dict[str, Any], Service | None]:
    _, env, emulator, _ = given
    service = await emulator({"env": env})
    spec = {"kind": "agentcore", "agent_runtime_arn": ARN, "endpoint_url": service.url}
    return spec, {**spec, "agent_runtime_arn": ARN.replace("contract-a1b2c3", "nothing-z9z9z9")}, service


async def _kubernetes(*given: Any) -> tuple[dict[str, Any], dict[str, Any], Service | None]:
    services, env, _, held = given
    api, pods = held.enter_context(HeldPort()), held.enter_context(HeldPort())
    images = json.dumps({"agent:1": [sys.executable, AGENT]})
    arguments = ["-m", "tests.kit.kubernetes_stand_in", str(api.number), images]
    stand_in = services.spawn("kubernetes-stand-in", arguments)
    await eventually(lambda: _answers(f"{api.url}/stand-in"), "the stand-in answers", 120)
    stand_in.url = api.url
    spec = {
        "kind": "kubernetes", "image": "agent:1", "namespace": "agents", "api_url": api.url, "port": pods.number,
        "env": env, "stop_grace_s": 0,
    }  # fmt: skip
    return spec, {**spec, "image": "no-such-image:1"}, stand_in


async def _answers(url: str) -> bool:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        try:
            return (await http.get(url)).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.mark.parametrize("place", KINDS, indirect=True)
async def test_a_start_gives_the_receipt_and_the_agent_runs_once_however_often_it_is_asked(place: Place) -> None:
    s = session()
    first = await place.start(s)
    again = await place.start(s)
    assert first == again == {"status": "processing", "s3_bucket": place.bucket.name, "result_key": f"e/g/{s}.json"}
    await eventually(lambda: place.bucket.keys(f"e/g/{s}.json"), "the result is saved", 120)
    assert runs(place.runs_dir) == {s: 1}
    await place.runtime.stop(s)


@pytest.mark.parametrize("place", KINDS, indirect=True)
async def test_stopping_what_never_was_and_stopping_twice_is_confirmed(place: Place) -> None:
    await place.runtime.stop(session())
    s = session()
    await place.start(s)
    await place.runtime.stop(s)
    await place.runtime.stop(s)


@pytest.mark.parametrize("place", ENDS_AGENTS, indirect=True)
async def test_a_stop_ends_the_agent(place: Place) -> None:
    s = session()
    await place.start(s, act="hang")
    assert place.pids(s)
    await place.runtime.stop(s)
    assert not place.pids(s)


@pytest.mark.parametrize("place", ENDS_AGENTS, indirect=True)
async def test_a_stop_during_the_start_leaves_nothing_behind(place: Place) -> None:
    s = session()
    starting = asyncio.create_task(place.start(s, act="hang"))
    await asyncio.sleep(0.1)
    await place.runtime.stop(s)
    await asyncio.gather(starting, return_exceptions=True)
    await place.runtime.stop(s)
    assert not place.pids(s)


@pytest.mark.parametrize("place", SEES_DEATH, indirect=True)
async def test_the_death_of_an_agent_is_seen_and_said(place: Place) -> None:
    s = session()
    await place.start(s, act="hang")
    watching = asyncio.create_task(place.runtime.watch(s))
    for pid in place.pids(s):
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(200):
        assert await watching
    await place.runtime.stop(s)


@pytest.mark.parametrize("place", KINDS, indirect=True)
async def test_what_cannot_run_is_a_start_error_that_says_what(place: Place) -> None:
    runtime, s = place.of(place.broken), session()
    with pytest.raises(StartError) as refused:
        await runtime.start(s, b"{}")
    assert refused.value.failure.type in (FailureType.CONTRACT_ERROR, FailureType.START_FAILED)
    assert any(
        word in refused.value.failure.message for word in ("/nowhere/agent", "127.0.0.1:1", "nothing", "no-such")
    )
    await runtime.stop(s)


@pytest.mark.parametrize("place", ["kubernetes"], indirect=True)
async def test_a_quota_is_throttled_and_no_node_leaves_no_job(place: Place) -> None:
    assert place.stand_in is not None
    async with httpx.AsyncClient(base_url=place.stand_in.url, timeout=60, trust_env=False) as http:
        await http.put("/stand-in", json={"quota": 0})
        with pytest.raises(StartError) as refused:
            await place.start(session())
        assert refused.value.failure.type is FailureType.THROTTLED
        await http.put("/stand-in", json={"quota": None, "nodes": False})
        hurried = place.of({**_spec_of(place), "start_timeout_s": 8})
        with pytest.raises(StartError) as refused:
            await hurried.start(session(), b"{}")
        assert refused.value.failure.type is FailureType.THROTTLED
        assert "0/1 nodes" in refused.value.failure.message
        assert (await http.get("/stand-in")).json()["jobs"] == []


@pytest.mark.parametrize("place", ["kubernetes"], indirect=True)
async def test_pods_are_listed_once_a_second_however_many_sessions_wait(place: Place) -> None:
    assert place.stand_in is not None
    began = asyncio.get_running_loop().time()
    sessions = [session() for _ in range(6)]
    await asyncio.gather(*(place.start(s) for s in sessions))
    await asyncio.gather(*(place.runtime.stop(s) for s in sessions))
    seconds = asyncio.get_running_loop().time() - began
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        calls = (await http.get(f"{place.stand_in.url}/stand-in")).json()["calls"]
    assert calls["GET"] <= seconds + 2
    assert (calls["POST"], calls["DELETE"]) == (6, 6)


def _spec_of(place: Place) -> dict[str, Any]:
    return {**place.broken, "image": "agent:1"}


@pytest.mark.parametrize("place", ["process"], indirect=True)
async def test_a_process_has_the_limits_it_was_given(place: Place) -> None:
    spec = _process_spec(place)
    place.runtime = place.of({**spec, "limits": {"memory_bytes": 2**31, "open_files": 64}})
    hoarding, burning = session(), session()
    await place.start(hoarding, act="hoard")
    await eventually(lambda: place.bucket.keys(f"e/g/{hoarding}.json"), "the result is saved", 120)
    assert place.bucket.get_json(f"e/g/{hoarding}.json")["status_code"] == 500, "four gibibytes were refused"
    (pid,) = place.pids(hoarding)
    allowed = await asyncio.to_thread(Path(f"/proc/{pid}/limits").read_text)
    assert "Max open files            64 " in allowed
    await place.runtime.stop(hoarding)
    place.runtime = place.of({**spec, "limits": {"cpu_s": 3}})  # ten times what it takes to come up
    await place.start(burning, act="burn")
    async with asyncio.timeout(200):
        said = await place.runtime.watch(burning)
    assert said is not None
    assert "SIGKILL" in said or "SIGXCPU" in said
    await place.runtime.stop(burning)


def _process_spec(place: Place) -> dict[str, Any]:
    return {**place.broken, "command": [sys.executable, AGENT]}
