"""The http runtime: agent containers that already run, by URL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollway_dispatcher.runtimes import containers
from rollway_dispatcher.runtimes.runtime import StartError
from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import AGENTS, runs, serving
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket
from tests.kit.ports import HeldPort
from tests.kit.services import Service, Services

Make = Callable[..., dict[str, Any]]
StartContainer = Callable[[], Service]


@pytest.fixture
def container(services: Services, s3: Bucket) -> Iterator[StartContainer]:
    with ExitStack() as held:

        def start() -> Service:
            port = held.enter_context(HeldPort())
            env = {"PORT": str(port.number), "AWS_ENDPOINT_URL_S3": s3.endpoint_url}
            service = services.spawn("container", [str(AGENTS / "contract_agent.py")], env=env)
            service.url = port.url
            return service

        yield start


async def up(*services: Service) -> list[str]:
    async def answers(url: str) -> bool:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            try:
                return (await http.get(f"{url}/ping")).status_code == 200
            except httpx.HTTPError:
                return False

    for s in services:
        await eventually(lambda s=s: answers(s.url), "the container answers", 120)
    return [s.url for s in services]


async def test_each_container_runs_as_many_rollouts_at_once_as_it_has_slots(
    settings: DispatcherSettings, batch: Make, container: StartContainer, runs_dir: Path, tmp_path: Path
) -> None:
    urls = await up(container(), container())
    gate = tmp_path / "go"
    async with serving(settings) as api:
        payload = {"reward": 1, "wait_for": str(gate)}
        body = batch([payload] * 4, n=2, runtime={"kind": "http", "urls": urls, "sessions_per_url": 2})
        made = await api.submit(body)
        await api.until_state(made["batch_id"], "running", 4)
        assert (await api.status(made["batch_id"]))["counts"] == {"running": 4, "pending": 4}
        os.close(os.open(gate, os.O_CREAT))
        results = await api.results(made["batch_id"])
    assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 8
    assert list(runs(runs_dir).values()) == [1] * 8


async def test_a_dead_container_fails_its_own_rollout_and_is_passed_over(
    settings: DispatcherSettings,
    batch: Make,
    container: StartContainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "PING_EVERY_S", 0.2)
    first, second = container(), container()
    urls = await up(first, second)
    gate = tmp_path / "go"
    async with serving(settings) as api:
        body = batch([{"reward": 1, "wait_for": str(gate)}] * 3, runtime={"kind": "http", "urls": urls})
        made = await api.submit(body)
        await api.until_state(made["batch_id"], "running", 2)
        await asyncio.to_thread(first.kill)
        os.close(os.open(gate, os.O_CREAT))
        results = await api.results(made["batch_id"])
    assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 3
    assert sorted(r["rollout"]["attempt"] for r in results) == [1, 1, 2], "the lost one ran again elsewhere"


async def test_no_container_at_all_is_start_failed(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        body = batch([{"reward": 1}], runtime={"kind": "http", "urls": ["http://127.0.0.1:1"]})
        made = await api.submit(body)
        (result,) = await api.results(made["batch_id"])
    assert result["rollout"]["failure"]["type"] == "start_failed"
    assert "http://127.0.0.1:1" in result["rollout"]["failure"]["message"]


async def test_a_server_that_is_no_agent_fails_the_batch(
    settings: DispatcherSettings, batch: Make, container: StartContainer
) -> None:
    (url,) = await up(container())
    async with serving(settings) as api:
        body = batch([{"act": "no_receipt"}] * 2, runtime={"kind": "http", "urls": [url]})
        made = await api.submit(body)
        await api.results(made["batch_id"])
        assert "receipt" in (await api.status(made["batch_id"]))["contract_error"]


async def test_a_container_that_drains_gets_no_new_session_and_keeps_its_own(
    settings: DispatcherSettings, batch: Make, container: StartContainer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    choose = containers.HttpContainers._choose
    refusals: list[StartError] = []

    async def noted(self: containers.HttpContainers, session_id: str) -> str:
        try:
            return await choose(self, session_id)
        except StartError as e:
            refusals.append(e)
            raise

    monkeypatch.setattr(containers.HttpContainers, "_choose", noted)
    gate, said = tmp_path / "go", tmp_path / "ping"
    os.environ["PING_SAYS"] = str(said)
    try:
        first = container()
    finally:
        del os.environ["PING_SAYS"]
    urls = await up(first)
    async with serving(settings) as api:
        spec = {"kind": "http", "urls": urls, "sessions_per_url": 2}
        held = await api.submit(batch([{"reward": 1, "wait_for": str(gate)}], runtime=spec))
        await api.until_state(held["batch_id"], "running", 1)
        said.write_text("Draining")
        refused = await api.submit(batch([{"reward": 1}], runtime=spec))
        await eventually(lambda: len(refusals) >= 2, "it was tried, and tried again", 120)
        assert (await api.status(refused["batch_id"]))["counts"].get("running", 0) == 0
        gate.touch()
        assert [r["rollout"]["state"] for r in await api.results(held["batch_id"])] == ["succeeded"]
        said.write_text("Healthy")
        assert [r["rollout"]["state"] for r in await api.results(refused["batch_id"])] == ["succeeded"]
