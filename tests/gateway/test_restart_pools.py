"""What a pool was told outlives the gateway: a drained worker stays drained until it is registered again."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.gateway.restarting import Restarting
from tests.kit.scripted_engine import ScriptedEngine
from tests.kit.services import Services


async def test_a_drained_worker_stays_drained_over_a_restart(
    services: Services, tmp_path: Path, engine: ScriptedEngine
) -> None:
    """It may be about to go: a call sent there after the restart would be lost with it."""
    gateway = Restarting(services, tmp_path / "journal")
    await gateway.start()
    async with ScriptedEngine() as other, httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        workers = "/v1/pools/default/workers"
        drained = (await http.post(workers, json={"url": engine.url})).json()["worker_id"]
        await http.post(workers, json={"url": other.url})
        assert (await http.post(f"{workers}/{drained}/drain", json={})).json()["draining"]
        for _ in range(2):  # the second time it is the restarted one that wrote it down
            await gateway.kill()
            await gateway.start()
            state = (await http.get("/v1/pools/default")).json()
            assert {w["url"]: (w["draining"], w["healthy"]) for w in state["workers"]} == {
                engine.url: (True, True), other.url: (False, True),
            }  # fmt: skip
            for name in "abcd":
                asked = {"messages": [{"role": "user", "content": "hi"}]}
                answer = await http.post(f"/sessions/{name}/v1/chat/completions", json=asked)
                assert answer.status_code == 200, answer.text
        assert not engine.requests
        again = await http.post(workers, json={"url": engine.url})
        assert (again.json()["worker_id"], again.json()["draining"]) == (drained, False)
        await gateway.kill()
        await gateway.start()
        state = (await http.get("/v1/pools/default")).json()
        assert not any(w["draining"] for w in state["workers"])
