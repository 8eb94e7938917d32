"""`Pace`: long steps in the order they came, no more of them in an iteration of the event loop than it has time for."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from rollway_gateway.agent_routes import LONG_BODY
from rollway_gateway.pace import BUDGET_S, Pace
from tests.gateway.conftest import running_gateway
from tests.kit.scripted_engine import ScriptedEngine


class Clock:
    """What steps take passes here alone: how fast the machine is has no part in it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("rollway_gateway.pace.time", SimpleNamespace(monotonic=made.monotonic))
    return made


class Iterations:
    """Counts those of the running loop."""

    def __init__(self) -> None:
        self.count = 0
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()


async def _run(
    clock: Clock, count: int, takes_s: float, size: int = 0, pace: Pace | None = None
) -> tuple[list[int], list[int]]:
    """Who ran, in their order, and in which iteration each."""
    pace, iterations = pace or Pace(), Iterations()
    ran: list[int] = []
    at: list[int] = []

    async def step(k: int) -> None:
        await pace.turn(size)
        ran.append(k)
        at.append(iterations.count)
        clock.now += takes_s

    await asyncio.gather(*(step(k) for k in range(count)))
    iterations.stop()
    return ran, at


async def test_steps_that_take_the_whole_budget_run_one_in_an_iteration(clock: Clock) -> None:
    ran, at = await _run(clock, 12, 2 * BUDGET_S)
    assert ran == list(range(12))
    assert at == sorted(at) and len(set(at)) == 12


async def test_steps_that_take_little_run_together(clock: Clock) -> None:
    """What is written at the end of an iteration, as the journal is, is written for several."""
    pace = Pace()
    await _run(clock, 50, BUDGET_S / 100, pace=pace)  # it learns that they take little
    ran, at = await _run(clock, 50, BUDGET_S / 100, pace=pace)
    assert ran == list(range(50)) and len(set(at)) < 15


async def test_a_large_step_is_not_let_on_beside_others(clock: Clock) -> None:
    """Also after many small ones: it counts by its bytes."""
    pace = Pace()
    await _run(clock, 50, 0.0005, size=1000, pace=pace)
    _, at = await _run(clock, 8, 0, size=8_000_000, pace=pace)
    assert len(set(at)) == 8


async def test_one_alone_waits_for_nothing() -> None:
    pace, iterations = Pace(), Iterations()
    await pace.turn(10)
    assert iterations.count == 0
    await asyncio.sleep(0.01)
    before = iterations.count
    await pace.turn(10)
    assert iterations.count == before
    iterations.stop()


async def test_those_that_are_cancelled_lose_their_turn_and_nobody_elses() -> None:
    pace = Pace()
    ran: list[int] = []

    async def step(k: int) -> None:
        await pace.turn(10)
        ran.append(k)

    tasks = [asyncio.create_task(step(k)) for k in range(8)]
    await asyncio.sleep(0)
    for k in (1, 2, 5):
        tasks[k].cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert ran == [0, 3, 4, 6, 7]
    await asyncio.wait_for(pace.turn(10), 60)


async def test_one_that_is_cancelled_when_its_turn_has_come_holds_up_nobody() -> None:
    pace = Pace()
    _, late, after = (asyncio.create_task(pace.turn(10)) for _ in range(3))
    await asyncio.sleep(0)
    assert len(pace._waiting) == 2
    pace._next()  # its future is done, and its task has not run yet
    late.cancel()
    await asyncio.wait_for(after, 60)


@pytest.mark.parametrize(("length", "turns"), [(100, 1), (LONG_BODY, 2)])
async def test_a_long_request_is_read_in_one_step_and_planned_in_another(
    monkeypatch: pytest.MonkeyPatch, length: int, turns: int
) -> None:
    async with ScriptedEngine() as engine, running_gateway(mode="mirror", health_interval_s=3600) as gateway:
        await gateway.http.post("/v1/pools/default/workers", json={"url": engine.url})
        pace, taken = gateway.inside.pace, []

        async def turn(size: int) -> None:
            taken.append(size)
            await Pace.turn(pace, size)

        monkeypatch.setattr(pace, "turn", turn)
        asked = {"model": "m", "messages": [{"role": "user", "content": "x" * length}]}
        answer = await gateway.http.post("/sessions/s/v1/chat/completions", json=asked)
    assert answer.status_code == 200
    request = int(answer.request.headers["content-length"])
    assert taken[:-1] == [request] * turns, "and the last for its answer"
