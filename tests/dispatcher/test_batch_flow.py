"""A batch from submit to results, with real agent processes and a real S3 API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import agent_pids, on_both, process_runtime, runs, serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually
from tests.kit.object_storage import Bucket

Make = Callable[..., dict[str, Any]]


@on_both
@pytest.mark.parametrize("agent", ["contract_agent.py", "shim_agent.py"])
async def test_every_rollout_comes_back_once_with_its_reward_and_its_own_tokens(
    settings: DispatcherSettings, batch: Make, runs_dir: Path, gateway: ScriptedGateway, s3: Bucket,
    state_path: Path, agent: str,
) -> None:  # fmt: skip
    async with serving(settings) as api:
        body = batch(
            [{"reward": 0.5, "prompt": "a"}, {"reward": [1, 0], "prompt": "b"}], n=2, runtime=process_runtime(agent),
            sampling_params={"temperature": 0.7},
        )  # fmt: skip
        made = await api.submit(body)
        results = await api.results(made["batch_id"])
        ids = [r["rollout"]["rollout_id"] for r in results]
        assert sorted(ids) == [f"{made['batch_id']}/g{g}/{i}" for g in (0, 1) for i in (0, 1)]
        for r in results:
            rollout, session = r["rollout"], r["rollout"]["session_id"]
            assert rollout["state"] == "succeeded", rollout
            assert rollout["rewards"] == ([0.5] if rollout["group_id"] == "g0" else [1.0, 0.0])
            assert "payload" not in rollout["result"]
            assert r["trajectory"]["session_id"] == session
            assert len(r["trajectory"]["turns"]) == 1
            assert gateway.sessions[session]["sampling_params"] == {"temperature": 0.7}
            timings = rollout["timings"]
            assert timings["admitted_at"] <= timings["invoked_at"] <= timings["finished_at"]
        assert set(runs(runs_dir).values()) == {1}
        status = await api.status(made["batch_id"])
        assert status["state"] == "finished"
        assert status["counts"] == {"succeeded": 4}
        assert len(s3.keys(f"exp/{made['batch_id']}/")) == 4
        await eventually(lambda: not agent_pids(state_path), "every session is stopped")
