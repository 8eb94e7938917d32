"""The dispatcher with the real gateway, the emulator and shim agents, all processes; only the engine is scripted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.codec import MEDIA_TYPE, load_packed, load_trajectory
from tests.dispatcher.harness import AGENTS, runs, serving
from tests.kit.object_storage import Bucket
from tests.kit.scripted_engine import Reply, ScriptedEngine, chat_ids, text_ids
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/shim-a1b2c3"


async def test_what_the_engine_sampled_comes_back_with_the_reward_it_earned(
    services: Services, settings: DispatcherSettings, batch: Make, s3: Bucket, runs_dir: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "agents.json"
    agent = {
        "arn": ARN, "command": [sys.executable, str(AGENTS / "shim_agent.py")],
        "env": {"AWS_ENDPOINT_URL_S3": s3.endpoint_url},
    }  # fmt: skip
    await asyncio.to_thread(listed.write_text, json.dumps({"agents": [agent]}))
    async with ScriptedEngine() as engine:
        engine.answer = lambda body: Reply(f"echo {body['messages'][0]['content']}")
        gateway, emulator = await asyncio.gather(
            services.start_async("gateway", ["-m", "rollway_gateway", "--port", "0", "--worker", engine.url]),
            services.start_async(
                "emulator", ["-m", "rollway_emulator", "--agents", str(listed), "--state-dir", str(tmp_path / "e")]
            ),
        )
        pushed = settings.model_copy(update={"gateway_url": gateway.url, "poll_interval_s": 30.0})
        async with serving(pushed) as api:
            spec = {"kind": "agentcore", "agent_runtime_arn": ARN, "endpoint_url": emulator.url}
            payloads = [{"reward": i, "prompt": f"question {i}"} for i in range(3)]
            made = await api.submit(batch(payloads, runtime=spec, sampling_params={"temperature": 0.3}))
            await api.results(made["batch_id"])
            answer = await api.http.get(f"/v1/batches/{made['batch_id']}/results", headers={"accept": MEDIA_TYPE})
        results = load_packed(answer.content)["results"]
        assert {r["rollout"]["state"] for r in results} == {"succeeded"}, results
        for r in results:
            i = int(r["rollout"]["group_id"][1:])
            assert r["rollout"]["rewards"] == [float(i)]
            assert r["rollout"]["timings"]["started_at"] is not None, "the shim reported"
            (sequence,) = load_trajectory(r["trajectory"]).sequences
            prompt = chat_ids([{"role": "user", "content": f"question {i}"}])
            sampled = text_ids(f"echo question {i}")
            assert sequence.token_ids.tolist()[: len(prompt) + len(sampled)] == prompt + sampled
        assert {body["temperature"] for _, body in engine.requests} == {0.3}
    assert sorted(runs(runs_dir).values()) == [1, 1, 1]
