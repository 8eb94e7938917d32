"""Whoever waits for a batch's news is woken, at once or after a short rest, and never missed."""

from __future__ import annotations

import asyncio

from rollway_dispatcher.bell import Bell


async def test_the_first_ring_wakes_at_once_and_those_within_the_rest_as_one() -> None:
    bell = Bell()
    first, other = bell.listen("b"), bell.listen("c")
    bell.ring(["b"])
    assert first.done()
    assert not other.done()
    again = bell.listen("b")
    for _ in range(5):
        bell.ring(["b"])
    assert not again.done()
    await asyncio.wait_for(again, 5)
    quiet = bell.listen("b")
    await asyncio.wait({quiet}, timeout=0.2)
    assert not quiet.done(), "five rings within the rest were one"


async def test_a_ring_after_the_rest_is_at_once_again_and_nothing_is_kept() -> None:
    bell = Bell()
    bell.ring(["b"])
    async with asyncio.timeout(5):
        while bell._resting:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.01)
    heard = bell.listen("b")
    bell.ring(["b"])
    assert heard.done()
    assert not bell._waiting
