"""The gateway killed with SIGKILL and started again under its URL: what an agent has in full is kept, once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from benchmarks import soak
from rollway_wire.codec import trajectory_tree
from tests.gateway.restarting import Restarting, kill_under_load
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import write_model
from tests.kit.services import Services

pytestmark = pytest.mark.timeout(300)  # a process is started up to six times

KILLS = int(os.environ.get("SOAK_KILLS", "4"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as running:
        yield running


@pytest.fixture
async def gateway(services: Services, tmp_path: Path, engine: ScriptedEngine) -> Restarting:
    running = Restarting(services, tmp_path / "journal", retry_grace_s="3600")
    await running.start()
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as http:
        answer = await http.post("/v1/pools/train/workers", json={"url": engine.url})
        assert answer.status_code == 201, answer.text
        await http.post("/v1/pools/train/open", json={"policy_version": 7})
    return running


async def _again(gateway: Restarting) -> None:
    await gateway.kill()
    await gateway.start()


async def test_a_session_goes_on_exactly_after_a_restart(gateway: Restarting, engine: ScriptedEngine) -> None:
    """Same URL, same key, same pool and version; the next prompt is the ids before it, and one sequence comes out."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        ticket = (await http.post("/v1/sessions", json={"pool": "train", "metadata": {"g": 1}})).json()
        messages = list(HI)
        for turn in range(4):
            if turn in (1, 3):
                await _again(gateway)
            async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=ticket["api_key"]) as client:
                answer = await client.chat.completions.create(model="m", messages=messages)
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": "and?"},
            ]
        made = await gateway.trajectory(http, ticket["session_id"], seal=True)
        assert (len(made.turns), len(made.sequences), made.mode, made.incomplete) == (4, 1, "exact", None)
        assert {t.policy_version_start for t in made.turns} == {7}
        assert (made.metadata["g"], made.metadata["lost_calls"]) == (1, 0)
        await _again(gateway)
        again = await gateway.trajectory(http, ticket["session_id"], seal=True)
        assert trajectory_tree(again) == trajectory_tree(made)
        refused = await http.post(f"/sessions/{ticket['session_id']}/v1/chat/completions", json={"messages": HI})
        assert refused.status_code == 410
        assert (await http.delete(f"/v1/sessions/{ticket['session_id']}")).status_code == 204
        await _again(gateway)
        refused = await http.post(f"/sessions/{ticket['session_id']}/v1/chat/completions", json={"messages": HI})
        assert refused.status_code == 410, "a forgotten session stays gone"


async def test_a_call_in_flight_at_the_kill_is_said_to_be_lost_and_its_retry_is_kept_once(
    gateway: Restarting, engine: ScriptedEngine
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        ticket = (await http.post("/v1/sessions", json={"pool": "train"})).json()
        engine.script(Reply("never seen", hold=asyncio.Event()))
        async with openai.AsyncOpenAI(base_url=ticket["base_url"], api_key="x", max_retries=9) as client:
            asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HI))
            await eventually(lambda: engine.active, "a call in flight")

            async def begun() -> bool:
                frames = await asyncio.to_thread(_bytes, gateway)
                return b'"index":0' in frames

            await eventually(begun, "its beginning is written down")
            await _again(gateway)
            assert (await asking).choices[0].message.content == "ok"
        made = await gateway.trajectory(http, ticket["session_id"], seal=True)
        assert [t.incomplete for t in made.turns] == [None]
        assert (made.metadata["lost_calls"], made.incomplete) == (1, None)
        assert made.ledger.trained == made.ledger.sampled


def _bytes(gateway: Restarting) -> bytes:
    return b"".join(path.read_bytes() for path in gateway.folder.glob("*.rwj"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_after_the_restart_gets_the_answer_that_was_sampled(
    gateway: Restarting, engine: ScriptedEngine, stream: bool
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        ticket = (await http.post("/v1/sessions", json={"pool": "train"})).json()
        url, body = ticket["base_url"] + "/chat/completions", {"messages": HI, "stream": stream}
        first = await http.post(url, json=body)
        sampled = len(engine.requests)
        await _again(gateway)
        again = await http.post(url, json=body, headers={"x-stainless-retry-count": "1"})
        assert (again.status_code, again.text) == (200, first.text)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert len(engine.requests) == sampled
        made = await gateway.trajectory(http, ticket["session_id"], seal=True)
        assert (len(made.turns), made.metadata["rejoined_calls"], made.ledger.duplicate) == (1, 1, 0)


async def test_previous_responses_can_be_continued_after_a_restart(gateway: Restarting) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        ticket = (await http.post("/v1/sessions", json={"pool": "train"})).json()
        async with openai.AsyncOpenAI(base_url=ticket["base_url"], api_key="x") as client:
            first = await client.responses.create(model="m", input="hi")
            await _again(gateway)
            second = await client.responses.create(model="m", input="and?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        made = await gateway.trajectory(http, ticket["session_id"], seal=True)
        assert (len(made.turns), len(made.sequences)) == (2, 1)


async def test_a_second_process_on_the_folder_refuses_to_start(
    gateway: Restarting, services: Services, tmp_path: Path
) -> None:
    other = services.spawn(
        "gateway", ["-m", "rollway_gateway", "--port", "0"],
        env={"ROLLWAY_GATEWAY_JOURNAL_DIR": str(tmp_path / "journal")},
    )  # fmt: skip
    assert await asyncio.to_thread(other.wait, 60) != 0
    assert f"is in use by process {gateway.service.pid}" in other.logs()


@pytest.mark.timeout(120 + 60 * KILLS)
async def test_kills_under_load_lose_and_double_nothing(services: Services, tmp_path: Path) -> None:
    """`make soak` does it with many more."""
    seen = await kill_under_load(services, tmp_path / "journal", kills=KILLS, agents=6, seed=SEED)
    print(dict(seen))
    assert seen["killed"] == KILLS and seen["answered"] > KILLS, seen
    if "SOAK_RECORD" in os.environ:
        soak.record("soak", f"gateway, seed {SEED}", seed=SEED, counts=seen)
