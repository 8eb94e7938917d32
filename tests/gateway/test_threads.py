"""Threads beside the event loop stand back behind it, and work where that is forbidden."""

from __future__ import annotations

import os
import threading

import pytest

from rollway_gateway.exact.off_loop import NICE, off_loop
from rollway_gateway.threads import stand_back
from tests.gateway.conftest import running_gateway


async def test_the_thread_that_renders_and_the_one_that_writes_do_not_take_the_core_from_the_loop() -> None:
    def own() -> tuple[int, int]:
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async with running_gateway(durability="journal") as gateway:
        await gateway.http.post("/v1/sessions", json={"session_id": "s"})  # written, so the thread is under way
        (journal,) = (t.native_id for t in threading.enumerate() if t.name == "journal")
        assert journal is not None and os.sched_getscheduler(journal) == os.SCHED_BATCH
    policy, nice = await off_loop(own)
    assert policy == os.SCHED_BATCH and nice == min(19, NICE)
    assert own()[0] == os.SCHED_OTHER, "the loop's own does"


def test_a_thread_that_may_not_choose_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    stand_back(5)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
