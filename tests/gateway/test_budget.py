"""A session's length budget: answers end there, and turns that no longer fit are refused as an engine refuses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.scripted_engine import Reply, ScriptedEngine, templated_ids, text_ids
from tests.kit.scripted_model import write_model

HI: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT = len(templated_ids(HI))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as running:
        yield running


@pytest.mark.parametrize("mode", ["exact", "mirror"])
async def test_turns_share_a_session_s_response_budget(engine: ScriptedEngine, mode: str) -> None:
    """The engine is asked for no more than is left; the third turn has no room and the SDK sees a 400."""
    async with running_gateway(mode=mode) as gateway:
        await gateway.add(engine)
        ticket = await gateway.open(max_response_tokens=60)
        said = Reply("a" * 20)
        second = [*HI, {"role": "assistant", "content": said.text}, {"role": "user", "content": "b"}]
        left = PROMPT + 60 - len(templated_ids(second))
        third = [*second, {"role": "assistant", "content": "c" * left}, {"role": "user", "content": "d"}]
        engine.script(said, Reply("c" * left, finish_reason="length"))
        async with gateway.openai(ticket) as client:
            for messages in (HI, second):
                await client.chat.completions.create(model="m", messages=messages)
            assert [body["max_tokens"] for _, body in engine.requests] == [60, left]
            with pytest.raises(
                openai.BadRequestError, match=f"maximum context length is {PROMPT + 60} tokens"
            ) as error:
                await client.chat.completions.create(model="m", messages=third)
        assert error.value.param == "input_tokens"
        made = await gateway.seal(ticket["session_id"])
    assert (made.mode, made.incomplete, len(engine.requests)) == (mode, None, 2)
    assert made.metadata["truncated"] == [made.turns[1].turn_id, "refused"]
    assert made.metadata["failed_calls"] == 1
    if mode == "exact":
        (row,) = made.sequences
        assert len(row.token_ids) == PROMPT + 60


async def test_an_agent_may_ask_for_less_than_is_left(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open(max_response_tokens=60)
    async with gateway.openai(ticket) as client:
        await client.chat.completions.create(model="m", messages=HI, max_tokens=9)
        await client.chat.completions.create(model="m", messages=HI, max_completion_tokens=1000)
    assert [body["max_tokens"] for _, body in engine.requests] == [9, 60]
    assert (await gateway.seal(ticket["session_id"])).metadata["truncated"] == []


async def test_a_first_prompt_over_its_budget_is_refused(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open(max_prompt_tokens=PROMPT)
    async with gateway.openai(ticket) as client:
        await client.chat.completions.create(model="m", messages=HI)
        with pytest.raises(openai.BadRequestError, match=f"maximum context length is {PROMPT} tokens"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "longer"}])
    assert len(engine.requests) == 1


async def test_an_answer_cut_by_the_engine_keeps_to_the_budget(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.script(Reply("part ", finish_reason="abort"), Reply("rest"))
    ticket = await gateway.open(max_response_tokens=60)
    async with gateway.openai(ticket) as client:
        await client.chat.completions.create(model="m", messages=HI)
    assert [body["max_tokens"] for _, body in engine.requests] == [60, 60 - len(text_ids("part "))]


async def test_a_budget_is_a_session_s_setting(gateway: RunningGateway) -> None:
    ticket = await gateway.open(max_response_tokens=60)
    again = {"session_id": ticket["session_id"], "max_response_tokens": 61}
    assert (await gateway.http.post("/v1/sessions", json=again)).status_code == 409
    assert (await gateway.http.post("/v1/sessions", json={"max_prompt_tokens": 0})).status_code in (400, 422)
