"""A call leaves nothing to garbage collection: what it held goes with its last reference.

The gateway's process collects only when it is idle (`garbage`), so a cycle would keep requests and answers for long.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollway_gateway.garbage import SOME, collect_by_hand, collect_when_idle
from rollway_gateway.openai_errors import AgentError
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import write_model

CALLS = 6
QUICK: dict[str, Any] = {"retry_grace_s": 0.2, "health_interval_s": 3600}
"""A failed health check may leave a cycle: there is none but the one at registration."""


@contextmanager
def _collected() -> Iterator[Counter[str]]:
    """Objects of ours that only garbage collection would have freed within the block."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        names = (f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.garbage)
        found.update(name for name in names if name.startswith("rollway_"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def _let_go(gateway: RunningGateway) -> None:
    """Until no call is there, no answer waits for a retry, and what they left to the loop is done."""
    await eventually(lambda: all(s.is_idle for s in gateway.inside.store), "calls and their answers are over")
    for _ in range(20):
        await asyncio.sleep(0)


async def _chat(gateway: RunningGateway, name: str, *, turns: int = 2, stream: bool = False) -> list[int]:
    messages: list[Any] = [{"role": "user", "content": f"hello {name}"}]
    statuses = []
    for _ in range(turns):
        body = {"model": "m", "messages": messages, "stream": stream}
        answer = await gateway.http.post(f"/sessions/{name}/v1/chat/completions", json=body)
        statuses.append(answer.status_code)
        if answer.status_code == 200 and not stream:
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
    return statuses


@pytest.mark.parametrize("durability", ["memory", "journal"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["mirror", "exact"])
async def test_calls_that_are_answered(tmp_path: Path, mode: str, stream: bool, durability: str) -> None:
    async with (
        ScriptedEngine(folder=write_model(tmp_path / "model")) as engine,
        running_gateway(mode=mode, durability=durability, **QUICK) as gateway,
    ):
        engine.answer = lambda body: Reply("y" * 40)
        await gateway.http.post("/v1/pools/default/workers", json={"url": engine.url})
        await _chat(gateway, "warm", stream=stream)
        await _let_go(gateway)
        with _collected() as found:
            for k in range(CALLS):
                assert await _chat(gateway, f"s{k}", stream=stream) == [200, 200]
            await _let_go(gateway)
    assert not found


REPLIES = {"refused": Reply(status=400, error={"message": "no"}), "failed": Reply(status=500, error={"message": "no"})}


@pytest.mark.parametrize("fault", [*REPLIES, "aborted", "left"])
async def test_calls_that_are_not(fault: str) -> None:
    settings = {"mode": "mirror", "breaker_failures": 1000, "max_attempts": 1}
    async with ScriptedEngine() as engine, running_gateway(**settings, **QUICK) as gateway:
        await gateway.http.post("/v1/pools/default/workers", json={"url": engine.url})
        engine.answer = lambda body: REPLIES.get(fault, Reply(hold=asyncio.Event()))

        async def fail(name: str) -> None:
            asked = {"model": "m", "messages": [{"role": "user", "content": name}]}
            asking = asyncio.create_task(gateway.http.post(f"/sessions/{name}/v1/chat/completions", json=asked))
            if fault in REPLIES:
                assert (await asking).status_code == REPLIES[fault].status
                return
            await eventually(lambda: (s := gateway.inside.store.find(name)) is not None and s.calls, "it is asked")
            if fault == "left":
                asking.cancel()
            for call in list(gateway.inside.store.get(name).calls) if fault == "aborted" else ():
                call.abort("told to", AgentError(503, "told to"))
            await asyncio.wait([asking])

        await fail("warm")
        await _let_go(gateway)
        with _collected() as found:
            for k in range(CALLS):
                await fail(f"s{k}")
            await _let_go(gateway)
    assert not found


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


@contextmanager
def _by_hand() -> Iterator[None]:
    """As in the gateway's process."""
    frozen = gc.get_freeze_count()
    collect_by_hand()
    try:
        yield
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()


def test_nothing_is_collected_by_itself() -> None:
    with _by_hand():
        cycle = weakref.ref(_Cycle())
        kept = [[n] for n in range(100_000)]
        assert cycle() is not None
        del kept


async def test_all_is_collected_when_no_call_is_in_flight_or_at_the_latest() -> None:
    """What is left in a cycle waits for a moment without calls."""
    in_flight, now = 1, 0.0

    def left() -> tuple[weakref.ref[_Cycle], list[Any]]:
        """A cycle, and as many new objects as are worth looking at."""
        return weakref.ref(_Cycle()), [[n] for n in range(2 * SOME)]

    def clock() -> float:
        return now

    with _by_hand():
        collecting = asyncio.create_task(collect_when_idle(lambda: in_flight, 0.01, latest_s=100.0, clock=clock))
        try:
            old, kept = left()
            await asyncio.sleep(0.1)
            assert old() is not None, "a call is in flight"
            in_flight = 0
            await eventually(lambda: old() is None, "all is collected when no call is in flight")
            in_flight = 1
            older = weakref.ref(_Cycle())
            now = 101.0
            await eventually(lambda: older() is None, "all is collected at the latest")
            assert not collecting.done()
            del kept
        finally:
            collecting.cancel()


async def test_what_failures_leave_is_bounded_though_there_is_always_a_call_in_flight() -> None:
    with _by_hand():
        collecting = asyncio.create_task(collect_when_idle(lambda: 1, 0.01, many=20_000, clock=lambda: 0.0))
        try:
            first = weakref.ref(_Cycle())
            left = [[n] for n in range(10_000)]
            await asyncio.sleep(0.1)
            assert first() is not None
            left += [[n] for n in range(20_000)]
            await eventually(lambda: first() is None, "so many are looked at")
            assert not collecting.done()
        finally:
            collecting.cancel()
