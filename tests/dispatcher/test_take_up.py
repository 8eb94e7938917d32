"""A batch that was posted and no more than that, when its dispatcher was gone: it is begun at once by the next one.

Nothing of it is due and nobody has news of it, so nothing but the taking up itself can ask for its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollway_dispatcher import engine
from rollway_dispatcher.order import accept
from rollway_dispatcher.rollout import fresh_batch
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.state import open_state
from rollway_wire.batch import BatchRequest
from rollway_wire.ids import new_batch_id
from tests.dispatcher.harness import Api, on_both, runs, serving

Make = Callable[..., dict[str, Any]]


async def posted(settings: DispatcherSettings, body: dict[str, Any]) -> str:
    """A batch on disk, as by a dispatcher that was killed between that and its first step."""
    request = BatchRequest.model_validate(body)
    order = accept(request, new_batch_id(), settings)
    async with open_state(settings) as store:
        made, _ = await store.create_batch(
            fresh_batch(order, request.groups, 0.0), request.groups, key=None, fingerprint=""
        )
    return made


@pytest.fixture(autouse=True)
def idle_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler does not look by itself."""
    monkeypatch.setattr(engine, "IDLE_S", 1e6)


async def all_succeed(api: Api, batch_id: str) -> None:
    results = await api.results(batch_id)
    assert [r["rollout"]["state"] for r in results] == ["succeeded"] * 4


@on_both
async def test_after_a_restart(settings: DispatcherSettings, batch: Make, runs_dir: Any) -> None:
    made = await posted(settings, batch([{"reward": 1}] * 2, n=2))
    async with serving(settings) as api:
        await all_succeed(api, made)
    assert list(runs(runs_dir).values()) == [1] * 4


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
async def test_by_a_dispatcher_that_runs_already(settings: DispatcherSettings, batch: Make, runs_dir: Any) -> None:
    async with serving(settings) as api:
        made = await posted(settings, batch([{"reward": 1}] * 2, n=2))
        await all_succeed(api, made)
    assert list(runs(runs_dir).values()) == [1] * 4
