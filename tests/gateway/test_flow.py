"""`Flow` and `Answer.pump`: a stream's middle, sent on from within the reads that bring it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.sse import SseBlocks
from rollway_gateway.capture.stream import Fingerprint, StreamFilter
from rollway_gateway.connection import AnswerBroken
from rollway_gateway.flow import Flow
from rollway_gateway.openai_errors import AgentError
from tests.gateway.test_capture_cuts import asked, event
from tests.gateway.test_connections import client, serving
from tests.kit.deadlines import eventually


def block(k: int, text: str = "é", **more: Any) -> bytes:
    return b"data: " + orjson.dumps(event("content", text, (k, "x", -1.0), **more)) + b"\n\n"


class Agent:
    """Takes pieces; while it does not, it makes the sender wait. ``at_once``: what it takes needs no coroutine."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.got = b""
        self.takes = asyncio.Event()
        self.takes.set()
        self._at_once = at_once

    def piece(self, body: bytes) -> Awaitable[None] | None:
        if not self._at_once or not self.takes.is_set():
            return self._later(body)
        self.got += body
        return None

    async def _later(self, body: bytes) -> None:
        await self.takes.wait()
        self.got += body


def flowing(agent: Agent, blocks: SseBlocks | None = None) -> tuple[Flow, Evidence]:
    evidence = Evidence(1)
    events = StreamFilter(asked("chat", stream=True), evidence, Fingerprint())
    events.block(block(0).removesuffix(b"\n\n"))
    worker: Any = SimpleNamespace(bytes_at=0.0)
    return Flow(worker, blocks or SseBlocks(), events, agent.piece), evidence


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("piece", [1, 7, 200, 10_000])
async def test_what_comes_in_any_pieces_goes_on(piece: int, at_once: bool) -> None:
    agent = Agent(at_once=at_once)
    flow, evidence = flowing(agent)
    sent = b"".join(block(k) for k in range(1, 9)) + block(9, finish_reason="stop") + b"data: [DONE]\n\n"
    pieces = [sent[i : i + piece] for i in range(0, len(sent), piece)]
    took = [flow.take(data) for data in pieces]
    assert took.index(False) == len(took) - 1, "nothing but the end ends it"
    await flow.settled()
    shown = (agent.got + flow.rest).split(b"\n\n")
    assert [orjson.loads(e[6:])["choices"][0]["delta"] for e in shown[:9]] == [{"content": "é"}] * 9
    assert shown[9:] == [b"data: [DONE]", b""]
    assert list(evidence.choice(0).ids) == list(range(10))


@pytest.mark.parametrize("at_once", [False, True])
async def test_an_agent_that_reads_slowly_is_waited_for(at_once: bool) -> None:
    """The flow stops, and goes on where it was: no event is lost, doubled or overtaken."""
    agent = Agent(at_once=at_once)
    flow, evidence = flowing(agent)
    assert flow.take(block(1, "a"))
    agent.takes.clear()
    assert not flow.take(block(2, "b"))
    settling = asyncio.create_task(flow.settled())
    await asyncio.sleep(0.01)
    assert not settling.done() and b'"b"' not in agent.got
    agent.takes.set()
    await settling
    assert flow.rest == b"" and flow.take(block(3, "c"))
    shown = [orjson.loads(e[6:])["choices"][0]["delta"]["content"] for e in agent.got.split(b"\n\n")[:-1]]
    assert shown == ["a", "b", "c"] and list(evidence.choice(0).ids) == [0, 1, 2, 3]


async def test_a_wait_for_the_agent_can_be_cancelled() -> None:
    agent = Agent()
    flow, _ = flowing(agent)
    agent.takes.clear()
    assert not flow.take(block(1))
    settling = asyncio.create_task(flow.settled())
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    agent.takes.set()
    await asyncio.sleep(0)
    assert agent.got == b""


async def test_an_agent_that_fails_while_it_is_waited_for() -> None:
    async def breaks(_: bytes) -> None:
        await asyncio.sleep(0)
        raise ConnectionResetError("gone")

    flow, _ = flowing(Agent())
    flow._piece = breaks
    assert not flow.take(block(1))
    with pytest.raises(ConnectionResetError):
        await flow.settled()


@pytest.mark.parametrize(
    ("last", "rest"),
    [
        (b'data: {"error": {"message": "x", "code": 500}}\n\n', b""),
        (block(5, finish_reason="abort"), b""),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
    ],
)
async def test_it_ends_with_what_is_not_like_the_others(last: bytes, rest: bytes) -> None:
    agent = Agent()
    flow, _ = flowing(agent)
    assert flow.take(block(1)) and not flow.take(block(2) + last)
    assert flow.rest.endswith(rest) and flow.rest.count(b"data:") == 1 + bool(rest)


async def test_an_event_without_an_end_is_an_error() -> None:
    flow, _ = flowing(Agent(), SseBlocks(limit=100))
    with pytest.raises(AgentError, match="not readable"):
        flow.take(b"data: " + b"x" * 200)


# -- pump


PIECES = [b"one", b"two", b"three"]


class Spaced:
    """Serves `PIECES`, each once told to: pieces sent at once could be read at once."""

    def __init__(self) -> None:
        self._go_on = asyncio.Semaphore(0)
        self.taken: list[bytes] = []

    def go_on(self, times: int = 1) -> None:
        for _ in range(times):
            self._go_on.release()

    async def serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % sum(map(len, PIECES)))
        await writer.drain()
        for piece in PIECES:
            await self._go_on.acquire()
            writer.write(piece)
            await writer.drain()


@pytest.mark.parametrize("wants", [1, 2, 3])
async def test_a_pump_ends_when_no_more_is_wanted_or_there_is_no_more(wants: int) -> None:
    spaced = Spaced()
    taken = spaced.taken

    def take(data: bytes) -> bool:
        taken.append(data)
        spaced.go_on()
        return len(taken) < wants

    async with serving(spaced.serve) as server, client() as connections:
        for _ in range(2):  # the connection serves the next
            taken.clear()
            async with connections.post(server.url, b"{}", {}) as answer:
                spaced.go_on()
                await answer.pump(take)
                spaced.go_on(len(PIECES) - wants - 1)
                rest = await answer.read()
            assert (taken, rest) == (PIECES[:wants], b"".join(PIECES[wants:]))
            spaced._go_on = asyncio.Semaphore(0)
        assert server.connections == 1


async def test_what_a_pump_gives_to_may_fail() -> None:
    spaced = Spaced()

    def take(_: bytes) -> bool:
        raise KeyError("ours")

    async with serving(spaced.serve) as server, client() as connections:
        with pytest.raises(KeyError, match="ours"):
            async with connections.post(server.url, b"{}", {}) as answer:
                spaced.go_on()
                await answer.pump(take)
        assert not connections._idle
        spaced.go_on(2)
        await eventually(lambda: server.left == 1, "the server sees the end")


async def test_a_pump_meets_a_lost_connection() -> None:
    pumping, took = asyncio.Event(), asyncio.Event()

    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        await pumping.wait()
        writer.write(b"some")
        await took.wait()
        writer.close()

    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        took.set()
        return True

    async with serving(cut) as server, client() as connections:
        with pytest.raises(AnswerBroken, match="closed"):
            async with connections.post(server.url, b"{}", {}) as answer:
                pumping.set()
                await answer.pump(take)
                await answer.piece()
    assert taken == [b"some"]


async def test_a_cancelled_pump_takes_nothing_more() -> None:
    """And its connection is closed, so that the worker stops."""
    spaced = Spaced()

    async with serving(spaced.serve) as server, client() as connections:

        async def ask() -> None:
            async with connections.post(server.url, b"{}", {}) as answer:
                spaced.go_on()
                await answer.pump(lambda data: bool(spaced.taken.append(data)) or True)

        asking = asyncio.create_task(ask())
        await eventually(lambda: spaced.taken == PIECES[:1], "the first piece is taken")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        spaced.go_on(2)
        await eventually(lambda: server.left == 1, "the server sees the end")
    assert spaced.taken == PIECES[:1]
