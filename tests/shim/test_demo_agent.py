"""The demo agent itself, in its own environment, with OpenAI's client against a scripted engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollway_local import models_calculating
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.shim.environments import ROOT, agent_python

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

RL_APP = ROOT / "deploy/demo/agent/rl_app.py"
ROW = {"prompt": "What is 6 * 7?", "answer": "42"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_python(tmp_path_factory.mktemp("demo"))


async def rollout(python: Path, url: str, payload: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Exit status and document of one rollout of the demo agent."""
    config = {"base_url": f"{url}/v1", "model_id": "scripted", **payload.pop("_rollout", {})}
    process = await asyncio.create_subprocess_exec(
        python, "-m", "rollway_shim", "run", RL_APP, json.dumps({**payload, "_rollout": config}),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None and out, err.decode()[-4000:]
    return process.returncode, json.loads(out)


def tool_results(messages: list[dict[str, Any]]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "tool"]


async def test_it_calculates_answers_and_is_rewarded(python: Path) -> None:
    """A tool call, its result, an answer, the final number: every prompt extends the one before."""
    async with ScriptedEngine() as engine:
        engine.script(
            Reply(tool_calls=[("calculator", '{"expression": "6 * 7"}')]), Reply("It is 42."), Reply("#### 42")
        )
        status, document = await rollout(python, engine.url, {**ROW})
        requests = [body for _, body in engine.requests]
    assert (status, document["rewards"], document["final_number"]) == (0, 1.0, 42.0)
    assert (document["model_calls"], document["tool_calls"]) == (3, 1)
    histories = [r["messages"] for r in requests]
    assert [h[: len(histories[i])] for i, h in enumerate(histories[1:])] == histories[:-1]
    assert tool_results(histories[1]) == ["42"]


@pytest.mark.parametrize(
    "replies",
    [
        [Reply(tool_calls=[("abacus", '{"x": 1}')]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("not a name!", "{}")]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("calculator", '{"expression": ')]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("calculator", '{"expression": 7, "x": []}')]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("calculator", '{"expression": "os.system(1)"}')]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("calculator", '"6 * 7"')]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("calculator", '{"expression": "1/0"}'), ("", "{}")]), Reply("hm"), Reply("#### 41")],
        [Reply(tool_calls=[("calculator", '{"expression": "1"}')])] * 4 + [Reply("#### 41")],
        [Reply("and so on and so", finish_reason="length"), Reply("#### 41")],
        [Reply("42"), Reply("#### 41 or", finish_reason="length")],
        [Reply("42"), Reply("", tool_calls=[("calculator", '{"expression": "1"}')])],
        [Reply(""), Reply("")],
    ],
)
async def test_whatever_a_tiny_model_writes_it_is_scored(python: Path, replies: list[Reply]) -> None:
    """Unknown tools, bad JSON, endless tool calls, cut answers, nothing at all: a reward, after at least two calls."""
    async with ScriptedEngine() as engine:
        engine.script(*replies)
        status, document = await rollout(python, engine.url, {**ROW})
        calls = len(engine.requests)
    assert status == 0, document
    assert calls == len(replies) and 0.0 <= document["rewards"] < 0.3


async def test_a_tool_call_that_was_not_carried_out_is_not_counted(python: Path) -> None:
    """Arithmetic that fails, a tool that is not there, then two that work."""
    wrong = [("calculator", '{"expression": "1/0"}'), ("abacus", '{"x": 1}')]
    right = [("calculator", '{"expression": "1"}'), ("calculator", '{"expression": "2 + 3"}')]
    async with ScriptedEngine() as engine:
        engine.script(Reply(tool_calls=wrong), Reply(tool_calls=right), Reply("5"), Reply("#### 5"))
        _, document = await rollout(python, engine.url, {**ROW})
    assert (document["model_calls"], document["tool_calls"]) == (4, 2)


async def test_the_demos_model_is_taught_with_what_this_agent_sends(python: Path) -> None:
    """Another system prompt, tool or question would have the model answer to something it was not taught on."""
    async with ScriptedEngine() as engine:
        engine.script(Reply("It is 42."), Reply("#### 42"))
        await rollout(python, engine.url, {**ROW})
        first, second = (body for _, body in engine.requests)
    assert first["messages"][0] == {"role": "system", "content": models_calculating.SYSTEM}
    assert first["tools"] == second["tools"] == [models_calculating.TOOL]
    assert second["messages"][-1]["content"] == [{"type": "text", "text": models_calculating.ASK}]


async def test_sampling_parameters_reach_the_engine_as_they_are(python: Path) -> None:
    """OpenAI's own and the engine's own alike."""
    params = {"max_tokens": 77, "temperature": 0.5, "top_k": 5, "min_p": 0.1}
    async with ScriptedEngine() as engine:
        engine.script(Reply("42"), Reply("#### 42"))
        status, _ = await rollout(python, engine.url, {**ROW, "_rollout": {"sampling_params": params}})
        requests = [body for _, body in engine.requests]
    assert status == 0
    assert all(params.items() <= request.items() for request in requests)


async def test_a_model_that_cannot_be_reached_is_an_error_not_a_reward(python: Path) -> None:
    status, document = await rollout(python, "http://127.0.0.1:9", {**ROW})
    assert (status, document["status_code"]) == (1, 500)
    assert "rewards" not in document and "Connection" in document["traceback"]


@pytest.mark.parametrize("row", [{"prompt": "p"}, {"prompt": [{"toolUse": {}}], "answer": "1"}, {**ROW, "answer": 42}])
async def test_a_row_that_is_not_text_is_refused_before_the_model_sees_it(python: Path, row: dict[str, Any]) -> None:
    async with ScriptedEngine() as engine:
        status, document = await rollout(python, engine.url, {**row})
        assert engine.requests == []
    assert status == 1 and "Problem" in document["stop_reason"]
