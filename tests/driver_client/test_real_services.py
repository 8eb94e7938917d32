"""The clients against the real dispatcher and gateway, real agent processes and S3; only the engine is scripted."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollway_driver.client import DispatcherClient, GatewayClient, RolloutClient, RolloutFailed
from rollway_wire.batch import BatchRequest, Group, Limits, ProcessRuntime, RolloutState
from rollway_wire.failures import FailureType
from rollway_wire.gateway import SessionSpec, WorkerSpec
from rollway_wire.problems import Conflict, NotFound
from tests.dispatcher.harness import AGENTS
from tests.driver_client.requests import QUICK
from tests.kit.deadlines import until
from tests.kit.object_storage import Bucket
from tests.kit.services import Service, Services

RUNTIME = ProcessRuntime(command=[sys.executable, str(AGENTS / "contract_agent.py")])
REPLY = "four"


@dataclass
class Stack:
    """Engine, gateway and dispatcher, each a process."""

    services: Services
    s3: Bucket
    folder: Path
    engine_url: str
    gateway: Service
    dispatcher: Service | None = None

    def start_dispatcher(self) -> Service:
        """Start it, or start it again at the same address on the same state."""
        port = self.dispatcher.port if self.dispatcher else 0
        self.dispatcher = self.services.start(
            "dispatcher",
            ["-m", "rollway_dispatcher"],
            env={
                "ROLLWAY_DISPATCHER_PORT": str(port),
                "ROLLWAY_DISPATCHER_GATEWAY_URL": self.gateway.url,
                "ROLLWAY_DISPATCHER_S3_ENDPOINT_URL": self.s3.endpoint_url,
                "ROLLWAY_DISPATCHER_S3_BUCKET": self.s3.name,
                "ROLLWAY_DISPATCHER_STATE_PATH": str(self.folder / "state.sqlite3"),
                "ROLLWAY_DISPATCHER_ALLOW_PROCESS_RUNTIME": "true",
                "ROLLWAY_DISPATCHER_POLL_INTERVAL_S": "0.2",
            },
        )
        return self.dispatcher

    def state_of(self, batch_id: str) -> RolloutState:
        assert self.dispatcher is not None
        with DispatcherClient(self.dispatcher.url, retry=QUICK) as client:
            (view,) = client.rollouts(batch_id)
            return view.state

    def client(self, **settings: Any) -> RolloutClient:
        assert self.dispatcher is not None
        return RolloutClient(runtime=RUNTIME, dispatcher_url=self.dispatcher.url, retry=QUICK, **settings)

    def payload(self, **more: Any) -> dict[str, Any]:
        return {"prompt": "2 + 2", "reward": 1.0, "runs": str(self.folder / "runs"), **more}


@pytest.fixture
def stack(services: Services, s3: Bucket, tmp_path: Path) -> Iterator[Stack]:
    (tmp_path / "runs").mkdir()
    engine = services.spawn("engine", ["-m", "tests.kit.scripted_engine", "--text", REPLY])
    until(lambda: engine.logs().startswith("http"), "the scripted engine serves")
    gateway = services.start("gateway", ["-m", "rollway_gateway"], env={"ROLLWAY_GATEWAY_PORT": "0"})
    made = Stack(services, s3, tmp_path, engine.logs().strip(), gateway)
    with GatewayClient(gateway.url, retry=QUICK) as client:
        client.add_worker(WorkerSpec(url=made.engine_url))
        client.open_pool(policy_version=7)
    made.start_dispatcher()
    yield made


def test_a_captured_batch_gives_rewards_and_tokens(stack: Stack) -> None:
    """Each item has its own agent's reward and the tokens of its own session, stamped with the pool's version."""
    with stack.client(exp_id="exp", model_id="m", sampling_params={"temperature": 0.5}) as client:
        payloads = [stack.payload(reward=i / 4) for i in range(3)]
        items = {item.index: item for item in client.run_batch(payloads, max_concurrent_sessions=2, timeout=90)}
    for i in range(3):
        item = items[i]
        assert item.success, item.error
        assert item.result is not None and item.result["rewards"] == i / 4
        assert item.trajectory is not None and item.trajectory.incomplete is None
        assert item.trajectory.session_id in item.result["result_key"]
        (sequence,) = item.trajectory.sequences
        assert sequence.trained_tokens == item.trajectory.ledger.trained > 0
        assert {v for v, m in zip(sequence.policy_versions, sequence.loss_mask, strict=True) if m} == {7}
    assert len({item.trajectory.session_id for item in items.values() if item.trajectory}) == 3
    assert len(stack.s3.keys("exp/")) == 3


def test_futures_tell_each_kind_of_end(stack: Stack) -> None:
    """A saved error is a result; a death and a missing model call are failures; a cancel stops the agent."""
    with stack.client(max_retry_attempts=1) as client:
        go = stack.folder / "go"  # an agent that dies before its receipt is read counts as one that did not start
        ends = {act: client.invoke(stack.payload(act=act), input_id=act) for act in ("ok", "raise", "no_turn")}
        ends["die"] = client.invoke(stack.payload(act="die", wait_for=str(go)), input_id="die")
        until(lambda: stack.state_of(ends["die"].batch_id) == RolloutState.RUNNING, "the agent that is to die runs", 60)
        go.touch()
        hanging = client.invoke(stack.payload(act="hang"))
        assert ends["ok"].result(90)["rewards"] == 1.0
        assert ends["ok"].trajectory is not None
        saved = ends["raise"].result(90)
        assert saved["status_code"] == 500 and "told to raise" in saved["stop_reason"]
        for act, kind in (("die", FailureType.AGENT_DIED), ("no_turn", FailureType.NO_TURNS)):
            with pytest.raises(RolloutFailed) as caught:
                ends[act].result(90)
            assert caught.value.failure.type is kind
        with pytest.raises(TimeoutError):
            hanging.result(0.5)
        assert hanging.cancelled


def test_evaluation_against_an_endpoint_bypasses_the_gateway(stack: Stack) -> None:
    """With a base URL the agent calls it directly, and nothing is captured."""
    with stack.client(base_url=f"{stack.engine_url}/v1", api_key="EMPTY") as client:
        future = client.invoke(stack.payload())
        assert future.result(90)["rewards"] == 1.0
        assert future.trajectory is None
    with GatewayClient(stack.gateway.url) as gateway:
        assert gateway.pool().sessions == 0


def test_a_killed_dispatcher_loses_and_doubles_nothing(stack: Stack) -> None:
    """SIGKILL with one rollout done and the others running; after the restart the same iteration and the same futures
    get each of theirs once, and no agent ran twice."""
    go = stack.folder / "go"
    with stack.client() as client:
        future = client.invoke(stack.payload(wait_for=str(go), reward=0.25))
        payloads = [stack.payload(), *[stack.payload(wait_for=str(go)) for _ in range(2)]]

        def crash() -> None:
            assert stack.dispatcher is not None
            stack.dispatcher.kill()
            go.touch()
            stack.start_dispatcher()

        crashing = threading.Thread(target=crash)
        seen = []
        for item in client.run_batch(payloads, max_concurrent_sessions=3, timeout=120):
            assert item.success, item.error
            seen.append(item.index)
            if len(seen) == 1:
                until(lambda: len(list((stack.folder / "runs").iterdir())) == 4, "every agent runs", 60)
                crashing.start()
        crashing.join()
        assert seen[0] == 0 and sorted(seen) == [0, 1, 2]
        assert future.result(90)["rewards"] == 0.25
    assert [f.read_text().count("\n") for f in (stack.folder / "runs").iterdir()] == [1] * 4


def test_async_invocations_run_together(stack: Stack) -> None:
    async def run() -> list[float]:
        async with stack.client() as client:
            futures = await asyncio.gather(*[client.invoke_async(stack.payload(reward=i)) for i in range(3)])
            return [result["rewards"] for result in await asyncio.gather(*futures)]

    assert asyncio.run(run()) == [0, 1, 2]


def test_lists_sessions_and_reasons_over_the_real_api(stack: Stack) -> None:
    """Lists longer than a page come whole; one rollout is cancelled, then whatever runs is stopped."""
    assert stack.dispatcher is not None
    with DispatcherClient(stack.dispatcher.url, retry=QUICK) as client:
        groups = [Group(group_id=f"g{i}", payload=stack.payload(act="hang" if i < 2 else "raise")) for i in range(3)]
        made = client.submit(BatchRequest(groups=groups, runtime=RUNTIME))
        until(lambda: client.status(made.batch_id).counts.get(RolloutState.RUNNING) == 2, "two hang", 60)
        until(lambda: client.failures(made.batch_id), "one has failed", 60)
        (reason,) = client.failures(made.batch_id)
        assert (reason.type, reason.rollouts, reason.group_ids) == (FailureType.AGENT_ERROR, 1, ["g2"])
        assert client.cancel_rollout(made.batch_id, "g0", 0).state is RolloutState.CANCELLED
        until(lambda: len(client.sessions()) == 1, "one is left", 60)
        (left,) = client.sessions()
        assert (left.group_id, left.index, left.state) == ("g1", 0, "running")
        client.stop_sessions([left.session_id])
        until(lambda: not client.sessions(), "none is left", 60)
        many = [Group(group_id=f"g{i}", n=4000, payload={}) for i in range(3)]
        large = client.submit(BatchRequest(groups=many, runtime=RUNTIME, limits=Limits(max_concurrent=1)))
        assert client.stop_sessions() is not None
        views = client.rollouts(large.batch_id)
        assert len({(v.group_id, v.index) for v in views}) == 12_000
        assert {v.state for v in views} == {RolloutState.CANCELLED}
        assert [b.batch_id for b in client.batches()] == [large.batch_id, made.batch_id]


def test_the_gateways_own_api(stack: Stack) -> None:
    """Every method of the gateway's client, on the real one."""
    with GatewayClient(stack.gateway.url, retry=QUICK) as gateway:
        gateway.health()
        worker = gateway.add_worker(WorkerSpec(url=stack.engine_url), "other")
        assert gateway.add_worker(WorkerSpec(url=stack.engine_url), "other").worker_id == worker.worker_id
        assert gateway.open_pool("other", 3).policy_version == 3
        assert {pool.pool for pool in gateway.pools()} == {"default", "other"}
        ticket = gateway.open_session(SessionSpec(pool="other"))
        assert gateway.open_session(SessionSpec(session_id=ticket.session_id, pool="other")) == ticket
        with pytest.raises(Conflict):
            gateway.open_session(SessionSpec(session_id=ticket.session_id, pool="default"))
        assert gateway.session(ticket.session_id)["pool"] == "other"
        assert gateway.trajectory(ticket.session_id).turns == ()
        assert gateway.seal(ticket.session_id) == gateway.seal(ticket.session_id)
        assert gateway.fence_pool("other", drain_timeout_s=5).gate == "fenced"
        assert gateway.open_pool("other").gate == "open"
        gateway.forget_session(ticket.session_id)
        gateway.remove_worker(worker.worker_id, "other")
        assert gateway.pool("other").workers == []
        with pytest.raises(NotFound):
            gateway.pool("nowhere")
