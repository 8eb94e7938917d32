"""Lists page by page, failures by reason, and cancelling one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rollway_dispatcher.failure_reasons import reasons
from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.failures import Failure, FailureType
from tests.dispatcher.harness import Api, agent_pids, on_both, serving
from tests.kit.deadlines import eventually

Make = Callable[..., dict[str, Any]]


async def walk(api: Api, path: str) -> tuple[list[dict[str, Any]], int]:
    """Every item behind the pages' links, and how many pages there were."""
    found, pages, where = [], 0, path
    while where:
        answer = (await api.http.get(where)).raise_for_status()
        found += answer.json()
        pages += 1
        where = answer.links["next"]["url"] if "next" in answer.links else ""
    return found, pages


@on_both
async def test_lists_are_walked_by_their_links(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = [await api.submit(batch([{"reward": 1}] * 3, n=2)) for _ in range(3)]
        newest_first = [m["batch_id"] for m in reversed(made)]
        for limit, pages in ((1, 3), (2, 2), (3, 1), (100, 1)):
            found, walked = await walk(api, f"/v1/batches?limit={limit}")
            assert ([b["batch_id"] for b in found], walked) == (newest_first, pages)
        where = f"/v1/batches/{newest_first[0]}/rollouts"
        wanted = [(f"g{g}", i) for g in range(3) for i in range(2)]
        for limit, pages in ((1, 6), (4, 2), (6, 1)):
            found, walked = await walk(api, f"{where}?limit={limit}")
            assert ([(r["group_id"], r["index"]) for r in found], walked) == (wanted, pages)
        assert (await api.http.get(f"{where}?cursor=99")).json() == []
        for path in ("/v1/batches?limit=0", "/v1/batches?cursor=-1", f"{where}?limit=0", f"{where}?cursor=x"):
            assert (await api.http.get(path)).status_code == 422


def test_failures_that_differ_in_numbers_alone_are_one_reason() -> None:
    def failed(message: str, kind: FailureType = FailureType.AGENT_ERROR) -> Failure:
        return Failure(type=kind, message=message)

    found = reasons(
        [
            ("a", failed("no row 17 at 0x7f3a")),
            ("b", failed("no row 4.5 at 0x11")),
            ("b", failed("no row 9 at 0x12")),
            ("c", failed("no row 1 at 0x1", FailureType.AGENT_DIED)),
            ("d", failed("key error: 'x'")),
        ]
    )
    assert [(r.type, r.message, r.rollouts, r.group_ids) for r in found] == [
        ("agent_error", "no row 17 at 0x7f3a", 3, ["a", "b"]),
        ("agent_died", "no row 1 at 0x1", 1, ["c"]),
        ("agent_error", "key error: 'x'", 1, ["d"]),
    ]


@on_both
async def test_a_batch_tells_why_its_rollouts_failed(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = await api.submit(
            batch([{"reward": 1}, {"act": "raise"}, {"act": "raise"}, {"act": "no_turn", "reward": 1}])
        )
        await api.results(made["batch_id"])
        found = (await api.http.get(f"/v1/batches/{made['batch_id']}/failures")).json()
        assert (await api.http.get("/v1/batches/none/failures")).status_code == 404
    assert [(r["type"], r["rollouts"], r["group_ids"]) for r in found] == [
        ("agent_error", 2, ["g1", "g2"]),
        ("no_turns", 1, ["g3"]),
    ]


async def test_one_rollout_is_cancelled_and_the_rest_go_on(
    settings: DispatcherSettings, batch: Make, state_path: Any
) -> None:
    """Running, waiting in line, finished: each is cancelled or left as it is; the batch itself is not cancelled."""
    async with serving(settings) as api:
        payloads = [{"reward": 1}, {"act": "hang"}, {"act": "hang"}]
        made = await api.submit(batch(payloads, limits={"max_concurrent": 2}))
        where = f"/v1/batches/{made['batch_id']}/rollouts"
        await api.until_state(made["batch_id"], "succeeded", 1)
        await api.until_state(made["batch_id"], "running", 2)
        later = await api.submit(batch([{"act": "hang"}, {"reward": 2}], limits={"max_concurrent": 1}))
        await api.until_state(later["batch_id"], "running", 1)
        cancelled = await api.http.post(f"{where}/g1/0/cancel")
        assert cancelled.json()["state"] == "cancelled"
        assert cancelled.json()["failure"]["type"] == "cancelled"
        assert (await api.http.post(f"{where}/g1/0/cancel")).json() == cancelled.json()
        assert (await api.http.post(f"{where}/g0/0/cancel")).json()["state"] == "succeeded"
        for unknown in ("g9/0", "g1/7", "g1/x", "g1/-1"):
            answer = await api.http.post(f"{where}/{unknown}/cancel")
            assert answer.status_code == (422 if unknown[-1] in "x1" else 404), unknown
        assert (await api.status(made["batch_id"]))["state"] == "running"
        assert (await api.status(made["batch_id"]))["counts"] == {"succeeded": 1, "cancelled": 1, "running": 1}
        await eventually(lambda: len(agent_pids(state_path)) == 2, "its process is ended")
        await asyncio.gather(
            api.http.post(f"{where}/g2/0/cancel"),
            api.http.post(f"/v1/batches/{later['batch_id']}/rollouts/g0/0/cancel"),
        )
        assert (await api.results(later["batch_id"]))[-1]["rollout"]["rewards"] == [2.0], "its room was given on"
        assert len(await api.results(made["batch_id"])) == 3

        async def quiet() -> bool:
            return (await api.http.get("/v1/sessions")).json() == [] and not agent_pids(state_path)

        await eventually(quiet, "every session is stopped")
