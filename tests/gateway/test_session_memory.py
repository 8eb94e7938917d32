"""`session_memory_mib`: what is counted of a session is what it weighs, and sessions over the budget leave memory.

Bytes are counted by the interpreter (tracemalloc), so these are numbers of the process, not of its own bookkeeping.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollway_gateway.session import Session
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.under_way import under_way
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import write_model

KIB = 2**10


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as running:
        running.answer = lambda body: Reply("y" * 150)
        yield running


@contextmanager
def _weighed() -> Iterator[list[int]]:
    """Bytes allocated within the block and still held after it; not those of clients, server and engine."""
    held: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield held
        gc.collect()
        others = [tracemalloc.Filter(False, f"*/{place}/*") for place in ("site-packages", "tests")]
        left = tracemalloc.take_snapshot().filter_traces(others)
        held.append(sum(trace.size for trace in left.traces))
    finally:
        tracemalloc.stop()


async def _chat(gateway: RunningGateway, name: str, turns: int, words: int) -> None:
    messages: list[Any] = [{"role": "user", "content": f"{name} " + "x" * words}]
    for _ in range(turns):
        answer = await gateway.http.post(f"/sessions/{name}/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 200, answer.text
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "and then?"}]


async def _respond(gateway: RunningGateway, name: str, turns: int, words: int) -> None:
    previous = None
    for turn in range(turns):
        asked = {"model": "m", "input": f"{turn} " + "x" * words, "previous_response_id": previous}
        answer = await gateway.http.post(f"/sessions/{name}/v1/responses", json=asked)
        assert answer.status_code == 200, answer.text
        previous = answer.json()["id"]


TALKS: dict[str, Any] = {
    "mirror": ("mirror", _chat, 3, 3000),
    "exact": ("exact", _chat, 3, 3000),
    "many short turns": ("exact", _chat, 8, 10),
    "responses that may be continued": ("exact", _respond, 3, 1000),
}


async def _talk(gateway: RunningGateway, engine: ScriptedEngine, what: str, names: range) -> None:
    _, talk, turns, words = TALKS[what]
    for n in names:
        await gateway.open(session_id=f"s{n}")
        await talk(gateway, f"s{n}", turns, words)
        engine.requests.clear()


@pytest.mark.parametrize("what", TALKS)
async def test_what_is_counted_is_what_sessions_weigh(engine: ScriptedEngine, what: str) -> None:
    """Not much less, or a budget would be overrun; not much more, or sessions would leave memory for nothing."""
    async with running_gateway(mode=TALKS[what][0]) as gateway:
        await gateway.add(engine)
        store = gateway.inside.store
        await _talk(gateway, engine, what, range(2))  # what is made once
        before = store.weight
        with _weighed() as held:
            await _talk(gateway, engine, what, range(2, 10))
        counted = store.weight - before
        assert held[0] / 1.25 < counted < held[0] * 1.8, f"{counted / 8:.0f} bytes a session, held {held[0] / 8:.0f}"
        assert counted == sum(store.get(f"s{n}").size for n in range(2, 10))


async def test_open_sessions_over_the_budget_leave_memory_and_come_back(engine: ScriptedEngine) -> None:
    budget = 256 * KIB
    async with running_gateway(mode="exact", session_memory_mib=budget / 2**20) as gateway:
        await gateway.add(engine)
        store = gateway.inside.store
        await _talk(gateway, engine, "exact", range(2))
        with _weighed() as held:
            await _talk(gateway, engine, "exact", range(2, 32))
        here = [s.session_id for s in store]
        assert len(store.stored()) > 20 and len(here) + len(store.stored()) == 32
        assert store.weight <= budget + store.get(here[-1]).size, "the one that was just used is over"
        entries = 30 * 3 * KIB  # what stays in memory of those that left
        assert held[0] < budget * 1.25 + entries, f"{held[0] / KIB:.0f} KiB are held"
        await _chat(gateway, "s7", 1, 3000)
        made = await gateway.seal("s7")
        assert (len(made.turns), made.incomplete, made.metadata["fidelity"]) == (4, None, {"turns": 4, "exact": 4})


def _asked(session: Session) -> tuple[str, bytes]:
    asked: tuple[str, bytes] = next(iter(session.originals._calls)).asked
    return asked


async def test_an_answer_kept_for_a_retry_is_counted_until_it_is_dropped(engine: ScriptedEngine) -> None:
    """Its client left; its session cannot leave memory, so others must."""
    async with running_gateway(retry_grace_s=3600) as gateway:
        await gateway.add(engine)
        ticket = await gateway.open(session_id="s")
        store, hold = gateway.inside.store, asyncio.Event()
        engine.answer = lambda asked: Reply("y" * 150, hold=hold)
        body = {"messages": [{"role": "user", "content": "x" * 3000}], "stream": True}
        asking = await under_way(gateway, engine, ticket, body)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        session = store.get("s")
        await eventually(lambda: session.originals.find(_asked(session), said=False), "its client is known to be gone")
        hold.set()
        await eventually(lambda: session.records and not session.visits, "the call goes on to its end")
        kept = session.originals.size
        assert session.originals.waiting and kept > 3000 + 150
        assert store.weight == session.size and not store.put_away(session)
        session.originals.clear()
        assert session.size == store.weight - kept
        await eventually(lambda: store.put_away(session), "it can leave now")
        assert store.weight == 0


async def test_without_a_journal_nothing_leaves(engine: ScriptedEngine) -> None:
    async with running_gateway(durability="memory", session_memory_mib=1e-6) as gateway:
        await gateway.add(engine)
        for n in range(3):
            await _chat(gateway, f"s{n}", 1, 10)
        assert [s.session_id for s in gateway.inside.store] == ["s0", "s1", "s2"]
