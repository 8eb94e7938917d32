"""Admission looks at the engines: when a pool's are all full, when they have room again, and when nobody says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rollway_dispatcher.pressure import SILENT_LIMIT, Marks, PressureWatch
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.step import News, Pressure
from rollway_wire.gateway import EngineLoad
from rollway_wire.problems import Unavailable
from tests.dispatcher.harness import serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually

Make = Callable[..., dict[str, Any]]
MARKS = Marks(waiting_high=8, kv_high=0.95, kv_low=0.85)


def load(waiting: int = 0, kv: float | None = 0.1, worker: str = "w") -> EngineLoad:
    return EngineLoad(worker_id=worker, running=4, waiting=waiting, kv_usage=kv)


@pytest.mark.parametrize(
    ("loads", "was", "now"),
    [
        ([], False, False), ([], True, False),
        ([load(8)], False, False), ([load(9)], False, True), ([load(1)], True, True), ([load(0)], True, False),
        ([load(0, 0.96)], False, True), ([load(0, 0.9)], True, True), ([load(0, 0.9)], False, False),
        ([load(0, 0.8)], True, False), ([load(9, None)], False, True), ([load(0, None)], True, False),
        ([load(9), load(0)], False, False), ([load(9), load(1)], True, True),
    ],
)  # fmt: skip
def test_a_pool_is_full_when_all_its_engines_are(loads: list[EngineLoad], was: bool, now: bool) -> None:
    assert MARKS.judge(loads, pressed=was) is now


class TalkingGateway:
    """Says what it is told to, one thing after another, the last for ever."""

    def __init__(self, *said: list[EngineLoad] | Exception) -> None:
        self._said = list(said)
        self.asked = 0

    async def loads(self, pool: str) -> list[EngineLoad]:
        self.asked += 1
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if isinstance(said, Exception):
            raise said
        return said


async def watched(gateway: TalkingGateway, looks: int, pools: Callable[[], set[str]] = lambda: {"p"}) -> list[News]:
    news: list[News] = []
    watch = PressureWatch(gateway, MARKS, 0.001, pools, news.append)  # type: ignore[arg-type]
    task = asyncio.create_task(watch.run(), name="watch")
    await eventually(lambda: gateway.asked >= looks, "it has looked")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return news


async def test_only_changes_are_news() -> None:
    said = ([load(9)], [load(20)], [load(3)], [load(0)], [load(0)])
    assert await watched(TalkingGateway(*said), 6) == [Pressure("p", True), Pressure("p", False)]


async def test_a_gateway_that_says_nothing_any_more_does_not_hold_a_pool_for_ever() -> None:
    silence = [Unavailable("away")] * (SILENT_LIMIT + 1)
    assert await watched(TalkingGateway([load(9)], *silence), SILENT_LIMIT + 3) == [
        Pressure("p", True), Pressure("p", False),
    ]  # fmt: skip
    assert await watched(TalkingGateway([load(9)], silence[0], [load(9)]), 6) == [Pressure("p", True)]


async def test_a_full_pool_admits_nothing_and_goes_on_when_it_has_room(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway
) -> None:
    looking = settings.model_copy(update={"pressure_interval_s": 0.05, "max_concurrent": 1})
    async with serving(looking) as api:
        first = await api.submit(batch([{"reward": 1, "linger_for": "/never"}]))
        await api.until_state(first["batch_id"], "running", 1)
        gateway.loads = [load(20).model_dump()]
        asked = gateway.load_asked
        await eventually(lambda: gateway.load_asked > asked + 2, "the dispatcher has seen it")
        second = await api.submit(batch([{"reward": 1}]))
        await api.cancel(first["batch_id"])
        asked = gateway.load_asked
        await eventually(lambda: gateway.load_asked > asked + 3, "it goes on looking")
        assert (await api.status(second["batch_id"]))["counts"] == {"pending": 1}
        gateway.loads = [load(0).model_dump()]
        (result,) = await api.results(second["batch_id"])
        assert result["rollout"]["state"] == "succeeded"
