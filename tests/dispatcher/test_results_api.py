"""Reading results: long-poll, cursor, packed and JSON, two batches at once, idempotent submit, cancel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_dispatcher.lookout import Lookout
from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.codec import MEDIA_TYPE, load_packed, load_trajectory, to_json_tree
from tests.dispatcher.harness import agent_pids, runs, serving
from tests.dispatcher.scripted_gateway import ScriptedGateway
from tests.kit.deadlines import eventually

Make = Callable[..., dict[str, Any]]


async def test_the_same_key_and_body_make_one_batch_and_another_body_is_a_conflict(
    settings: DispatcherSettings, batch: Make
) -> None:
    async with serving(settings) as api:
        body = batch([{"act": "hang"}])
        headers = {"idempotency-key": "step-7"}
        posts = [api.http.post("/v1/batches", json=body, headers=headers) for _ in range(4)]
        answers = await asyncio.gather(*posts)
        assert sorted(a.status_code for a in answers) == [200, 200, 200, 201]
        assert len({a.json()["batch_id"] for a in answers}) == 1
        spelled_out = body | {"require_rewards": True, "model_id": ""}
        assert (await api.http.post("/v1/batches", json=spelled_out, headers=headers)).status_code == 200
        other = await api.http.post("/v1/batches", json=body | {"model_id": "m"}, headers=headers)
        assert other.status_code == 409
        assert other.headers["content-type"] == "application/problem+json"
        assert "step-7" in other.json()["detail"]
        anew = await api.http.post("/v1/batches", json=body)
        assert anew.status_code == 201
        assert anew.headers["location"] == f"/v1/batches/{anew.json()['batch_id']}"
        listed = (await api.http.get("/v1/batches")).json()
        assert [b["batch_id"] for b in listed] == [anew.json()["batch_id"], answers[0].json()["batch_id"]]


async def test_a_waiting_reader_is_woken_at_once_by_a_pushed_result(
    settings: DispatcherSettings, batch: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(self: Lookout, *_: Any) -> list[str]:
        raise AssertionError("no listing was due")

    monkeypatch.setattr(Lookout, "_list", listed)
    slow_listing = settings.model_copy(update={"poll_interval_s": 300.0})
    gate = tmp_path / "go"
    async with serving(slow_listing) as api:
        made = await api.submit(batch([{"reward": 1, "reports": True, "wait_for": str(gate)}]))
        await api.until_state(made["batch_id"], "running", 1)
        waiting = asyncio.create_task(api.page(made["batch_id"], wait_s=60))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        os.close(os.open(gate, os.O_CREAT))
        page = await asyncio.wait_for(waiting, 55)  # before its own time is up
    (result,) = page["results"]
    timings = result["rollout"]["timings"]
    assert page["finished"]
    assert timings["noticed_at"] is not None, "by the push"
    assert timings["started_at"] is not None


async def test_an_empty_wait_ends_in_time_with_an_empty_page(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"act": "hang"}]))
        page = await api.page(made["batch_id"], wait_s=0.2)
        assert page == {"results": [], "cursor": 0, "finished": False}


async def test_packed_and_json_pages_are_the_same_tree(settings: DispatcherSettings, batch: Make) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": 0.5, "prompt": "ü"}, {"act": "raise"}]))
        as_json = await api.results(made["batch_id"])
        answer = await api.http.get(f"/v1/batches/{made['batch_id']}/results", headers={"accept": MEDIA_TYPE})
    assert answer.headers["content-type"] == MEDIA_TYPE
    packed = load_packed(answer.content)
    assert to_json_tree(packed) == {"results": as_json, "cursor": 2, "finished": True}
    trained = next(r for r in packed["results"] if r["rollout"]["state"] == "succeeded")
    assert load_trajectory(trained["trajectory"]).sequences[0].token_ids.tolist() == [1, 7, 8]


async def test_the_cursor_walks_every_result_once_and_an_old_cursor_gives_the_same_page(
    settings: DispatcherSettings, batch: Make
) -> None:
    async with serving(settings) as api:
        made = await api.submit(batch([{"reward": i} for i in range(5)]))
        whole = await api.results(made["batch_id"])
        walked, cursor, finished = [], 0, False
        while not finished:
            page = await api.page(made["batch_id"], cursor=cursor, limit=2)
            assert page == await api.page(made["batch_id"], cursor=cursor, limit=2)
            walked += page["results"]
            cursor, finished = page["cursor"], page["finished"]
    assert walked == whole
    assert cursor == 5


async def test_two_batches_at_once_do_not_mix(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway, runs_dir: Path
) -> None:
    async with serving(settings) as api:
        bodies = [
            batch([{"reward": 10 * k + i} for i in range(4)], n=2, capture={"pool": f"pool-{k}"}, experiment_id=f"e{k}")
            for k in range(2)
        ]
        made = await asyncio.gather(*map(api.submit, bodies))
        results = await asyncio.gather(*[api.results(m["batch_id"]) for m in made])
    for k in range(2):
        for r in results[k]:
            rollout = r["rollout"]
            assert rollout["batch_id"] == made[k]["batch_id"]
            assert rollout["rewards"] == [10.0 * k + int(rollout["group_id"][1:])]
            assert gateway.sessions[rollout["session_id"]]["pool"] == f"pool-{k}"
            assert rollout["result"]["result_key"].startswith(f"e{k}/{made[k]['batch_id']}/{rollout['group_id']}/")
        assert len(results[k]) == 8
    assert len(runs(runs_dir)) == 16


@pytest.mark.parametrize("act", ["hang", "spawn"])
async def test_cancel_stops_every_session_and_keeps_what_had_finished(
    settings: DispatcherSettings, batch: Make, state_path: Path, gateway: ScriptedGateway, act: str
) -> None:
    async with serving(settings) as api:
        limits = {"max_concurrent": 3}
        made = await api.submit(batch([{"reward": 1}, *[{"act": act}] * 5], limits=limits))
        await api.until_state(made["batch_id"], "succeeded", 1)
        await api.until_state(made["batch_id"], "running", 3)
        status = await api.cancel(made["batch_id"])
        assert status["state"] in ("cancelling", "finished")
        assert status["counts"] == {"succeeded": 1, "cancelled": 5}
        results = await api.results(made["batch_id"])
        assert {r["rollout"]["failure"]["type"] for r in results[1:]} == {"cancelled"}

        async def finished() -> bool:
            return bool((await api.status(made["batch_id"]))["state"] == "finished")

        await eventually(finished, "cancelling ends", 120)
        assert not agent_pids(state_path), "finished means that nothing runs any more"
        assert gateway.sealed == gateway.sessions.keys(), "no model call can follow"
        assert (await api.cancel(made["batch_id"]))["state"] == "finished"


async def test_without_capture_the_agent_gets_the_callers_own_base_url(
    settings: DispatcherSettings, batch: Make, gateway: ScriptedGateway
) -> None:
    no_gateway = settings.model_copy(update={"gateway_url": None})
    async with serving(no_gateway) as api:
        body = batch([{"reward": 1}], capture=None, rollout={"base_url": f"{gateway.url}/sessions/own/v1"})
        made = await api.submit(body)
        (result,) = await api.results(made["batch_id"])
    assert result["trajectory"] is None
    assert result["rollout"]["state"] == "succeeded"
    assert gateway.calls == {"own": 1}
    assert not gateway.sessions


async def test_cancel_while_starting_leaves_no_process_behind(
    settings: DispatcherSettings, batch: Make, state_path: Path
) -> None:
    silent = {"kind": "process", "command": ["sleep", "600"], "start_timeout_s": 600}
    async with serving(settings) as api:
        for wait_for_process in (False, True):
            made = await api.submit(batch([{}] * 3, runtime=silent))
            await api.until_state(made["batch_id"], "starting", 1)
            if wait_for_process:
                await eventually(lambda: agent_pids(state_path), "a process is there", 120)
            await api.cancel(made["batch_id"])

            async def finished(batch_id: str = made["batch_id"]) -> bool:
                return bool((await api.status(batch_id))["state"] == "finished")

            await eventually(finished, "the starts are ended, not waited for", 120)
            assert not agent_pids(state_path)


async def test_a_clean_stop_ends_local_processes_where_told_to_and_the_next_start_tries_again(
    settings: DispatcherSettings, batch: Make, state_path: Path, tmp_path: Path
) -> None:
    ending = settings.model_copy(update={"keep_processes": False})
    gate = tmp_path / "go"
    async with serving(ending) as api:
        made = await api.submit(batch([{"reward": 1, "wait_for": str(gate)}]))
        await api.until_state(made["batch_id"], "running", 1)
    assert not agent_pids(state_path)
    os.close(os.open(gate, os.O_CREAT))
    async with serving(ending) as api:
        (result,) = await api.results(made["batch_id"])
    assert (result["rollout"]["state"], result["rollout"]["attempt"]) == ("succeeded", 2)
