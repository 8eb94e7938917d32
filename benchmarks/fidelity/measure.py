"""One gateway under the scripted agents: its scores, and the rows it hands to a trainer."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from benchmarks.fidelity.harvest import Row
from benchmarks.fidelity.score import Score, score
from benchmarks.fidelity.scripted_engine import MODEL, ScriptedEngine, serving
from benchmarks.fidelity.scripts import SCRIPTS, THREADS, TOOLS, TURNS, Script, answers, echoed, opening
from benchmarks.fidelity.subjects import Compared
from benchmarks.gateway import machine
from benchmarks.gateway.bench import up
from benchmarks.gateway.environments import ROOT
from benchmarks.gateway.process import Process
from benchmarks.gateway.subjects import Launch
from rollway_kit.serve import bind


@dataclass
class Measured:
    scores: dict[str, Score] = field(default_factory=dict)
    """By script."""
    rows: list[Row] = field(default_factory=list)
    """Of all sessions."""


async def session(compared: Compared, url: str, script: Script, seed: int, client: httpx.AsyncClient) -> list[Any]:
    """Run one agent through its script; the rows the gateway hands out."""
    name = str(uuid.uuid4())
    opens = compared.subject.opens
    if opens is not None:
        call = opens(name)
        (
            await client.post(call.path, content=call.body, headers={"content-type": "application/json"})
        ).raise_for_status()
    base = url + compared.base.format(session=name)
    async with openai.AsyncOpenAI(base_url=base, api_key=compared.key.format(session=name), max_retries=0) as agent:
        histories = [opening(script, seed, thread) for thread in THREADS[: script.threads]]
        tools: dict[str, Any] = {"tools": TOOLS} if script.uses_tools else {}
        for turn, messages in ((turn, messages) for turn in range(TURNS) for messages in histories):
            got = await agent.chat.completions.create(model=MODEL, messages=messages, max_tokens=512, **tools)
            message = echoed(script, got.choices[0].message.model_dump(exclude_none=True))
            messages += [message, *answers(message, turn)]
    return await compared.harvest(client, name)


async def measure(compared: Compared, folder: Path, seeds: int) -> Measured:
    """Run every script ``seeds`` times; ``folder`` holds the tokenizer.

    Raises:
        Unavailable, StartFailed: the gateway cannot be had here.
    """
    engine: ScriptedEngine = await serving(folder)
    work = Path(tempfile.mkdtemp(prefix="fidelity-"))
    gateway: Process | None = None
    held = bind("127.0.0.1", 0)  # for a program that is told a port: nobody else is given it meanwhile
    try:
        port = held.getsockname()[1]
        command = compared.subject.command(Launch(port, engine.url, work))
        core = machine.cores().subject
        gateway = Process(command, core=core, log=work / "log", cwd=ROOT, environment=compared.subject.environment)
        url = f"http://127.0.0.1:{port}"
        await up(gateway, url, compared.subject)
        found = Measured()
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for script in SCRIPTS.values():
                total = found.scores[script.name] = Score()
                for seed in range(seeds):
                    rows = await session(compared, url, script, seed, client)
                    total.add(score(engine.drawn[script.name, seed], rows))
                    found.rows += rows
        return found
    finally:
        if gateway is not None:
            gateway.stop()
        held.close()
        await engine.stop()
        shutil.rmtree(work)
