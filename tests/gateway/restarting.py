"""A gateway process that is killed and started again under its URL, and agents that go through it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai

from rollway_wire.codec import load_trajectory
from rollway_wire.tokens import Trajectory, Turn
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import FIRST_BYTE
from tests.kit.services import Service, Services


class Restarting:
    """One journal folder, one port, one process after another."""

    def __init__(self, services: Services, folder: Path, **env: str) -> None:
        self._services, self.folder = services, folder
        self._env = {
            "ROLLWAY_GATEWAY_JOURNAL_DIR": str(folder), "ROLLWAY_GATEWAY_HEALTH_INTERVAL_S": "0.2",
            "ROLLWAY_GATEWAY_HEALTH_TIMEOUT_S": "60",
            "ROLLWAY_GATEWAY_RETRY_AFTER_S": "1", "ROLLWAY_GATEWAY_LOG_LEVEL": "warning",
            **{f"ROLLWAY_GATEWAY_{name.upper()}": value for name, value in env.items()},
        }  # fmt: skip
        self._service: Service | None = None
        self._port = 0
        self.url = ""

    @property
    def service(self) -> Service:
        assert self._service is not None
        return self._service

    async def start(self, *arguments: str) -> None:
        log_level = {} if self._port else {"ROLLWAY_GATEWAY_LOG_LEVEL": "info"}
        self._service = self._services.spawn(
            "gateway", ["-m", "rollway_gateway", *arguments],
            env={**self._env, **log_level, "ROLLWAY_GATEWAY_PORT": str(self._port)}, health="/health",
        )  # fmt: skip
        self._service.url = self.url
        await eventually(lambda: asyncio.to_thread(self.service.ready), "the gateway serves", 60)
        self.url, self._port = self.service.url, self.service.port

    async def kill(self) -> None:
        await asyncio.to_thread(self.service.kill)

    async def healthy(self, http: httpx.AsyncClient) -> None:
        async def check() -> bool:
            return bool((await http.get("/health/workers")).json()["healthy"])

        await eventually(check, "a healthy worker", 60)

    async def trajectory(self, http: httpx.AsyncClient, session_id: str, *, seal: bool = False) -> Trajectory:
        url = f"/v1/sessions/{session_id}"
        answer = await (http.post(url + "/seal") if seal else http.get(url + "/trajectory"))
        assert answer.status_code == 200, answer.text
        return load_trajectory(answer.json())


async def kill_under_load(services: Services, folder: Path, *, kills: int, agents: int, seed: int) -> Counter[str]:
    """Agents talk through the OpenAI SDK, streaming and not, while the gateway is killed at random moments.

    Every answer that an agent got in full must be one turn of its session, once; every ledger must close. Returns how
    often what happened.
    """
    said = random.Random(seed)
    seen: Counter[str] = Counter()
    serial = iter(range(10**9))
    async with ScriptedEngine() as engine:
        engine.answer = lambda body: Reply(f"answer {next(serial)} ")
        gateway = Restarting(services, folder)
        await gateway.start("--worker", engine.url)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            await gateway.healthy(http)
        stop = asyncio.Event()
        working = [
            asyncio.create_task(_agent(gateway.url, f"agent-{n}", stop, seen, stream=n % 2 == 0)) for n in range(agents)
        ]
        for _ in range(kills):
            answered = seen["answered"]
            await eventually(lambda answered=answered: seen["answered"] > answered, "agents are answered", 60)
            await asyncio.sleep(said.uniform(0, 0.3))
            await gateway.kill()
            await gateway.start()
            seen["killed"] += 1
        stop.set()
        got = await asyncio.gather(*working)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            for n, answers in enumerate(got):
                made = await gateway.trajectory(http, f"agent-{n}", seal=True)
                _check(made, answers, seen)
    return seen


async def _agent(url: str, name: str, stop: asyncio.Event, seen: Counter[str], *, stream: bool) -> list[str]:
    """Grows one conversation; returns the texts it got in full."""
    got: list[str] = []
    messages: list[Any] = [{"role": "user", "content": f"I am {name}"}]
    async with openai.AsyncOpenAI(
        base_url=f"{url}/sessions/{name}/v1", api_key="x", max_retries=8, timeout=30
    ) as client:  # fmt: skip
        while not stop.is_set():
            try:
                text = await _ask(client, messages, stream=stream)
            except (openai.APIConnectionError, openai.APIStatusError, httpx.HTTPError) as e:
                seen[f"failed with {type(e).__name__}"] += 1
                await asyncio.sleep(0.05)
                continue
            got.append(text)
            seen["answered"] += 1
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
            if len(messages) > 12:
                del messages[1:]
    return got


async def _ask(client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool) -> str:
    if not stream:
        answer = await client.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content or ""
    parts, whole = [], False
    async for chunk in await client.chat.completions.create(model="m", messages=messages, stream=True):
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            whole = whole or choice.finish_reason is not None
    if not whole:
        raise httpx.ReadError("the stream ended early")
    return "".join(parts)


def _check(made: Trajectory, answers: list[str], seen: Counter[str]) -> None:
    """Every text of the engine is another; it is one token a byte."""
    texts = Counter(map(_text, made.turns))
    assert [text for text, n in texts.items() if n > 1 and text] == [], "a sampled answer is kept twice"
    whole = {_text(turn) for turn in made.turns if turn.incomplete is None}
    assert [text for text in answers if text not in whole] == [], "an answer that an agent got is lost"
    assert [text for text, n in Counter(answers).items() if n > 1] == [], "an answer was given to two asks"
    assert made.ledger.sampled == made.ledger.trained + made.ledger.duplicate + made.ledger.orphaned + made.ledger.lost
    assert made.incomplete is None
    seen["turns"] += len(made.turns)
    seen["lost in flight"] += made.metadata["lost_calls"]
    seen["rejoined"] += made.metadata["rejoined_calls"]


def _text(turn: Turn) -> str:
    return bytes(i - FIRST_BYTE for i in turn.completion_token_ids if i >= FIRST_BYTE).decode()
