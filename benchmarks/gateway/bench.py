"""One subject under test: engine, gateway, sessions and loads, with what they cost."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from benchmarks.gateway.environments import ROOT, tokenizer
from benchmarks.gateway.machine import Cores
from benchmarks.gateway.process import Process, StartFailed
from benchmarks.gateway.subjects import Launch, Subject
from benchmarks.load_answers import FIRST_SEED, MODEL, Script, words
from benchmarks.load_client import Call, LoadResult, run_load
from rollway_kit.serve import bind

START_S = 90.0
GROUP = 8
"""Sessions that begin with the same prompt, as the rollouts of a GRPO group do."""


class Refused(RuntimeError):
    """A subject did not answer as it should, so its numbers would mean nothing."""


@dataclass
class Cost:
    """Of one load."""

    cpu_s: float
    load: LoadResult
    upstream: int
    """Calls that reached the engine."""
    captured: int
    """Of those, calls that asked for tokens."""


def prompt(tokens: int) -> str:
    """Text of about so many tokens."""
    return " ".join(words(tokens))


def body(messages: list[dict[str, object]], *, stream: bool = False, max_tokens: int = 256) -> bytes:
    asked = {"model": MODEL, "stream": stream, "max_tokens": max_tokens, "temperature": 1.0, "seed": FIRST_SEED}
    return orjson.dumps({**asked, "messages": messages})


class Bench:
    """A running subject. Made with `running`."""

    def __init__(self, subject: Subject, gateway: Process, url: str, engine_url: str) -> None:
        self.subject = subject
        self.gateway = gateway
        self.url = url
        self._engine_url = engine_url
        self._seeds: dict[str, int] = {}
        """By session; those of a group have one, and with it one prompt."""

    async def script(self, script: Script) -> None:
        """Set what the engine answers from now on."""
        await run_load(self._engine_url, [Call("/script", orjson.dumps(asdict(script)))], in_flight=1)

    async def tally(self) -> dict[str, int]:
        got = await run_load(self._engine_url, [Call("/tally", b"", method="GET")], in_flight=1, keeps=True)
        counts: dict[str, int] = orjson.loads(got.bodies[0])
        return counts

    async def sessions(self, count: int) -> list[str]:
        """Open so many sessions; their ids."""
        ids = [str(uuid.uuid4()) for _ in range(count)]
        opens = self.subject.opens
        if opens is not None:
            opened = await run_load(self.url, [opens(i) for i in ids], in_flight=8)
            good = opened.answered[200] + opened.answered[201]
            if good != count:
                raise Refused(f"{count - good} of {count} sessions could not be opened: {dict(opened.answered)}")
        first = len(self._seeds) // GROUP + 1
        self._seeds |= {session: FIRST_SEED + first + k // GROUP for k, session in enumerate(ids)}
        return ids

    async def tickets(self, count: int) -> dict[str, str]:
        """Open so many sessions of ours: each one's base URL, by its id."""
        assert self.subject.opens is not None
        calls = [self.subject.opens(str(uuid.uuid4())) for _ in range(count)]
        opened = await run_load(self.url, calls, in_flight=8, keeps=True)
        said = [orjson.loads(answer) for answer in opened.bodies]
        if opened.answered[201] != count:
            raise Refused(f"{opened.answered[201]} of {count} sessions could be opened: {dict(opened.answered)}")
        return {ticket["session_id"]: ticket["base_url"] for ticket in said}

    def call(self, session: str, payload: bytes) -> Call:
        seed = b'"seed":%d'
        payload = payload.replace(seed % FIRST_SEED, seed % self._seeds.get(session, FIRST_SEED))
        return Call(self.subject.path(session), payload, self.subject.headers(session))

    async def load(
        self, sessions: list[str], payload: bytes, *, in_flight: int, timeout_s: float = 60, deadline_s: float = 60,
        keeps: bool = False, ramp_s: float = 0,
    ) -> Cost:  # fmt: skip
        """One call in each session, and its cost."""
        calls: Iterator[Call] = (self.call(s, payload) for s in sessions)
        before, began = await self.tally(), self.gateway.cpu_s()
        result = await run_load(
            self.url,
            calls,
            in_flight=in_flight,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            keeps=keeps,
            ramp_s=ramp_s,
        )
        cpu_s, after = self.gateway.cpu_s() - began, await self.tally()
        return Cost(cpu_s, result, after["calls"] - before["calls"], after["captured"] - before["captured"])

    async def must_be_exact(self) -> None:
        """Raises:
        Refused: its worker is not in exact mode, or not any more."""
        got = await run_load(self.url, [Call("/v1/pools/default", b"", method="GET")], in_flight=1, keeps=True)
        if b'"mode":"exact"' not in got.bodies[0]:
            raise Refused(f"it does not run in exact mode: {got.bodies[0]!r:.300}")

    async def check(self, script: Script, payload: bytes, *, stream: bool) -> None:
        """One call, its answer read: it must be the engine's.

        Raises:
            Refused: it is not.
        """
        cost = await self.load(await self.sessions(1), payload, in_flight=1, keeps=True)
        if cost.load.ok != 1:
            raise Refused(f"the first call was answered {dict(cost.load.answered)}: {cost.load.bodies[:1]!r:.300}")
        got = cost.load.bodies[0]
        expected = " ".join(words(script.prompt_tokens + script.sampled_tokens)[-3:]).encode()
        if not stream and expected not in got:
            raise Refused(f"the answer lacks the engine's last words: {got[-300:]!r}")
        if stream and self.subject.streams and cost.load.events < script.events - 1:
            raise Refused(f"{cost.load.events} events of {script.events}")


@asynccontextmanager
async def running(
    subject: Subject, cores: Cores, environment: Mapping[str, str] | None = None, *, bound: bool = True
) -> AsyncIterator[Bench]:
    """Engine and subject, up and answering.

    Args:
        environment: of the subject, besides its own.
        bound: it has its own core alone.

    Raises:
        Unavailable: the subject cannot be had here.
        StartFailed: it did not come up.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{subject.name}-"))
    started: list[Process] = []
    held = bind("127.0.0.1", 0)  # for a program that is told a port: nobody else is given it meanwhile
    try:
        given = ["--tokenizer", str(await asyncio.to_thread(tokenizer))] if subject.renders else []
        engine = Process(
            [sys.executable, "-m", "benchmarks.load_engine", *given], core=cores.engine, log=folder / "engine.log",
            cwd=ROOT, pipe=True,
        )  # fmt: skip
        started.append(engine)
        engine_url = engine.first_line()
        port = held.getsockname()[1]
        command = subject.command(Launch(port, engine_url, folder))
        gateway = Process(
            command,
            core=cores.subject if bound else None,
            log=folder / "gateway.log",
            cwd=ROOT,
            environment={**subject.environment, **(environment or {})},
        )
        started.append(gateway)
        url = f"http://127.0.0.1:{port}"
        await up(gateway, url, subject)
        yield Bench(subject, gateway, url, engine_url)
    finally:
        for process in reversed(started):
            process.stop()
        held.close()
        shutil.rmtree(folder)


async def up(gateway: Process, url: str, subject: Subject) -> None:
    """Wait until the subject serves calls.

    Raises:
        StartFailed: it ended, or does not within 90 s.
    """
    path, holds = subject.ready or (subject.health, b"")
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if not gateway.alive:
            raise StartFailed(f"ended at once: {gateway.log_end()}")
        try:
            got = await run_load(url, [Call(path, b"", method="GET")], in_flight=1, timeout_s=5, keeps=True)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        if got.ok and holds in got.bodies[0]:
            await asyncio.sleep(0.5)  # what else it starts in the background
            return
        await asyncio.sleep(0.1)
    raise StartFailed(f"not ready within {START_S:g} s: {gateway.log_end()}")
