"""The gateway as a process of its own, both SDKs' synchronous clients one after the other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from rollway_wire.codec import load_trajectory
from tests.gateway_dialects.conversation import ANSWER, QUESTION, TURNS, check, script
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import ScriptedEngine
from tests.kit.services import Services

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def with_anthropic(url: str) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: list[Any] = [{"name": "add", "input_schema": SCHEMA}]
    with anthropic.Anthropic(base_url=url, api_key="EMPTY") as client:
        while True:
            with client.messages.stream(model="m", max_tokens=64, messages=messages, tools=tools) as stream:
                said = stream.get_final_message()
            messages.append({"role": "assistant", "content": said.content})
            if said.stop_reason != "tool_use":
                return "".join(b.text for b in said.content if b.type == "text")
            sums = [(b.id, b.input["a"] + b.input["b"]) for b in said.content if b.type == "tool_use"]  # type: ignore[index]
            results = [{"type": "tool_result", "tool_use_id": i, "content": str(n)} for i, n in sums]
            messages.append({"role": "user", "content": results})


def with_openai(url: str) -> str:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: list[Any] = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
    with openai.OpenAI(base_url=url + "/v1", api_key="EMPTY") as client:
        while True:
            with client.responses.stream(model="m", input=items, tools=tools) as stream:
                said = stream.get_final_response()
            items += said.output
            calls = [i for i in said.output if i.type == "function_call"]
            if not calls:
                return said.output_text
            for made in calls:
                numbers = json.loads(made.arguments)
                output = str(numbers["a"] + numbers["b"])
                items.append({"type": "function_call_output", "call_id": made.call_id, "output": output})


@pytest.mark.parametrize("exact", [False, True])
async def test_both_sdks_on_a_gateway_process(services: Services, engine: ScriptedEngine, exact: bool) -> None:
    gateway = await services.start_async("gateway", ["-m", "rollway_gateway", "--worker", engine.url, "--port", "0"])
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:

        async def healthy() -> bool:
            return bool((await http.get("/health/workers")).json()["healthy"])

        await eventually(healthy, "the worker is healthy")
        sessions = {"one-with-messages": with_anthropic, "one-with-responses": with_openai}
        for name, ask in sessions.items():
            script(engine, exact=exact)
            assert await asyncio.to_thread(ask, f"{gateway.url}/sessions/{name}") == ANSWER
        assert len(engine.requests) == 2 * TURNS
        for name in sessions:
            check(load_trajectory((await http.post(f"/v1/sessions/{name}/seal")).json()), exact=exact)
