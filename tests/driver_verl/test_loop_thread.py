"""The driver's thread owns what it starts and ends it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rollway_driver.verl.loop_thread import LoopThread
from tests.kit.deadlines import until


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "test-loop"]


def test_closing_cancels_what_runs_and_leaves_no_thread() -> None:
    loop, begun, ended = LoopThread("test-loop"), threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop.start(forever())
    assert begun.wait(60)
    loop.close()
    assert ended.is_set() and not threads() and loop.failure is None
    loop.close()


def test_the_first_failure_is_kept_for_the_next_caller() -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    loop = LoopThread("test-loop")
    try:
        loop.start(fail("first"))
        until(lambda: loop.failure, "the failure")
        loop.start(fail("second"))
        loop.run(asyncio.sleep(0))
        assert str(loop.failure) == "first"
    finally:
        loop.close()


def test_run_waits_for_the_value_or_the_error() -> None:
    async def divide(by: int) -> float:
        return 1 / by

    loop = LoopThread("test-loop")
    try:
        assert loop.run(divide(2)) == 0.5
        with pytest.raises(ZeroDivisionError):
            loop.run(divide(0))
    finally:
        loop.close()
