"""Images in messages: they reach the engine as the agent sent them, in each dialect, and their turns are whole. An
engine that takes no images refuses them in its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.before_vllm import gateway_before
from tests.gateway.conftest import running_gateway
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import write_model
from tests.kit.sum_agents import Dialect
from tests.kit.vllm_server import VllmServer, engine_client

DIALECTS: tuple[Dialect, ...] = ("chat", "responses", "messages")
QUESTION = "What is on it?"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel, in base64."""


def looking(dialect: Dialect, data: str = PIXEL) -> dict[str, Any]:
    """A user message with an image, as the dialect writes it."""
    url = f"data:image/png;base64,{data}"
    parts: dict[str, list[dict[str, Any]]] = {
        "chat": [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": url}}],
        "responses": [{"type": "input_text", "text": QUESTION}, {"type": "input_image", "image_url": url}],
        "messages": [
            {"type": "text", "text": QUESTION},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        ],
    }
    return {"role": "user", "content": parts[dialect]}


async def ask(base_url: str, dialect: Dialect, messages: list[dict[str, Any]], *, stream: bool) -> str:
    """The answer's text; greedy, and at most eight tokens long."""
    asked: dict[str, Any] = {"model": "any", "extra_body": {"temperature": 0}}
    text = ""
    if dialect == "messages":
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="EMPTY", max_retries=0) as client:
            said: Any = await client.messages.create(**asked, messages=messages, max_tokens=8, stream=stream)
            if not stream:
                return "".join(b.text for b in said.content)
            async for event in said:
                text += event.delta.text if event.type == "content_block_delta" else ""
            return text
    async with openai.AsyncOpenAI(base_url=base_url, api_key="EMPTY", max_retries=0) as client:
        if dialect == "responses":
            said = await client.responses.create(**asked, input=messages, max_output_tokens=8, stream=stream)
            if not stream:
                return str(said.output_text)
            async for event in said:
                text += event.delta if event.type == "response.output_text.delta" else ""
            return text
        said = await client.chat.completions.create(**asked, messages=messages, max_tokens=8, stream=stream)
        if not stream:
            return str(said.choices[0].message.content)
        async for part in said:
            text += (part.choices[0].delta.content or "") if part.choices else ""
        return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_image_reaches_the_engine_in_the_middle_of_an_exact_session(
    tmp_path: Path, dialect: Dialect, stream: bool
) -> None:
    """Only the engine can prompt with it, so from there on chats go as they are, the image in their history; every
    turn is whole and told as what it is."""
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as engine, running_gateway() as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        messages: list[dict[str, Any]] = []
        words: list[dict[str, Any]] = [{"role": "user", "content": w} for w in ("Hello.", "Go on.", "Are you sure?")]
        for said in (words[0], words[1], looking(dialect), words[2]):
            engine.script(Reply("ok"))
            messages.append(said)
            text = await ask(ticket["base_url"], dialect, messages, stream=stream)
            messages.append({"role": "assistant", "content": text})
        made = await gateway.seal(ticket["session_id"])
        (_, first), (_, second), (third_path, third), (fourth_path, fourth) = engine.requests
        assert "messages" in first and isinstance(second["prompt"][0], int)
        assert third_path == fourth_path == "/v1/chat/completions"
        for body in (third, fourth):
            (shown,) = (m for m in body["messages"] if isinstance(m["content"], list) and len(m["content"]) == 2)
            assert shown == looking("chat")
        assert (made.incomplete, [t.incomplete for t in made.turns]) == (None, [None] * 4)
        assert made.ledger.trained == made.ledger.sampled
        assert (made.mode, made.metadata["fidelity"]) == ("mirror", {"turns": 4, "exact": 2})
        assert all("image_url" in branch["reason"] for branch in made.metadata["branches"])


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_engine_without_eyes_refuses_in_its_own_words(
    vllm_server: VllmServer, dialect: Dialect, stream: bool
) -> None:
    """Also in the middle of an exact session, which goes on after it."""
    async with gateway_before(vllm_server, mode="exact") as gateway, engine_client() as http:
        chat = {"model": vllm_server.model, "messages": [looking("chat")], "max_tokens": 8, "stream": stream}
        own = (await http.post(f"{vllm_server.url}/v1/chat/completions", json=chat)).json()["error"]
        assert own["code"] == 400
        ticket = await gateway.open()
        base = ticket["base_url"]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello."}]
        messages.append({"role": "assistant", "content": await ask(base, dialect, messages, stream=stream)})
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as refusal:
            await ask(base, dialect, [*messages, looking(dialect)], stream=stream)
        assert refusal.value.body["message" if dialect != "messages" else "error"] in (own["message"], refused(own))  # type: ignore[index]
        await ask(base, dialect, [*messages, {"role": "user", "content": "Never mind."}], stream=stream)
        made = await gateway.seal(ticket["session_id"])
        assert (made.mode, len(made.turns), len(made.sequences), made.incomplete) == ("exact", 2, 1, None)


def refused(error: dict[str, Any]) -> dict[str, Any]:
    """As Anthropic's API words it."""
    return {"type": error["type"], "message": error["message"]}
