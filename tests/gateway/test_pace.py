"""`Pace`: one long step in each iteration of the event loop, in the order they came."""

from __future__ import annotations

import asyncio
import contextlib

from rollway_gateway.pace import Pace


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


async def test_long_steps_run_one_in_an_iteration_and_in_order() -> None:
    pace, iterations = Pace(), Iterations()
    ran: list[tuple[int, int]] = []

    async def step(k: int) -> None:
        await pace.turn()
        ran.append((k, iterations.count))

    await asyncio.gather(*(step(k) for k in range(15)))
    iterations.stop()
    assert [k for k, _ in ran] == list(range(15))
    at = [count for _, count in ran]
    assert at == sorted(at) and len(set(at)) == len(at)
    assert at[-1] - at[0] <= 2 * len(at), "no iteration passes without one for long"


async def test_one_alone_waits_for_nothing() -> None:
    pace, iterations = Pace(), Iterations()
    await pace.turn()
    assert iterations.count == 0
    await asyncio.sleep(0.01)
    before = iterations.count
    await pace.turn()
    assert iterations.count == before
    iterations.stop()


async def test_those_that_are_cancelled_lose_their_turn_and_nobody_elses() -> None:
    pace = Pace()
    ran: list[int] = []

    async def step(k: int) -> None:
        await pace.turn()
        ran.append(k)

    tasks = [asyncio.create_task(step(k)) for k in range(8)]
    await asyncio.sleep(0)
    for k in (1, 2, 5):
        tasks[k].cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert ran == [0, 3, 4, 6, 7]
    await asyncio.wait_for(pace.turn(), 1)


async def test_one_that_is_cancelled_when_its_turn_has_come_holds_up_nobody() -> None:
    pace = Pace()
    _, late, after = (asyncio.create_task(pace.turn()) for _ in range(3))
    await asyncio.sleep(0)
    assert len(pace._waiting) == 2
    pace._next()  # its future is done, and its task has not run yet
    late.cancel()
    await asyncio.wait_for(after, 1)
