"""A batch's whole way: each prompt gets its terminal tag whatever happens, rows before tags, fence before the last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rollway_driver.verl.batches import BatchBroken, Batches, Order
from rollway_driver.verl.prompts import Prompt
from rollway_driver.verl.settings import read_settings
from rollway_driver.verl.trainer_facts import read_facts
from rollway_wire.batch import BatchRequest, RolloutResult
from rollway_wire.codec import load_packed, load_trajectory
from rollway_wire.failures import FailureType
from rollway_wire.problems import RollwayError, Unavailable
from rollway_wire.tokens import Trajectory
from tests.driver_verl.made import config, result, sequence, trajectory
from tests.driver_verl.scripted_services import Diary, RecordingSink, Script, ScriptedDispatcher, ScriptedGate
from tests.kit.deadlines import eventually

Ended = tuple[RolloutResult, Trajectory | None]
N = 4


def good(uid: str, index: int, version: int = 0) -> Ended:
    return result(uid, index, rewards=[float(index)]), trajectory(sequence([(2, 0), (2, 1)], version=version))


def dead(uid: str, index: int, kind: FailureType = FailureType.AGENT_DIED, message: str = "gone") -> Ended:
    return result(uid, index, failure=kind, message=message), None


def play(*ends: Ended | Exception | asyncio.Event) -> Script:
    """A script: results in order, errors raised, events waited for."""

    async def script(request: BatchRequest) -> AsyncIterator[Ended]:
        for end in ends:
            if isinstance(end, Exception):
                raise end
            if isinstance(end, asyncio.Event):
                await end.wait()
            else:
                yield end

    return script


class Scene:
    """`Batches` among scripted services."""

    def __init__(self, script: Script, **changes: Any) -> None:
        self.diary: Diary = []
        self.gate = ScriptedGate(self.diary)
        self.dispatcher = ScriptedDispatcher(self.diary, script)
        self.sink = RecordingSink(self.diary)
        self.last: list[tuple[int, int]] = []
        changes = {"rollway__pool": "p", **changes}
        self.batches = Batches(
            read_settings(config(**changes)), read_facts(config(**changes)),
            dispatcher=self.dispatcher, gateways=self.gate, sink=self.sink,
            on_last=lambda step, rows: self.last.append((step, rows)),
        )  # fmt: skip

    async def run(self, *uids: str, step: int = 1, validate: bool = False) -> None:
        prompts = tuple(Prompt(uid=u, payload={"prompt": u}, kept={}) for u in uids)
        await self.batches.run(Order(key=f"k{step}", step=step, validate=validate, prompts=prompts))

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.diary if entry[0] == what]


async def test_groups_are_committed_as_they_complete_and_the_pool_is_fenced_before_the_last_tag() -> None:
    ends = [good("a", 0), good("b", 0), *(good("a", i) for i in range(1, N)), *(good("b", i) for i in range(1, N))]
    scene = Scene(play(*ends))
    await scene.run("a", "b")
    assert scene.diary == [
        ("open", "p", 0), ("running", "train", "a", "b"), ("submit", "p"),
        ("rows", "a"), ("tag", "train", "a", "finished"),
        ("rows", "b"), ("fence", "p"), ("tag", "train", "b", "finished"),
    ]  # fmt: skip
    assert [s.score for s in scene.sink.rows["a"]] == [0, 1, 2, 3]
    assert scene.last == [(1, 8)]


@pytest.mark.parametrize(("step", "validate", "version"), [(1, False, 0), (5, False, 4), (0, True, 0), (5, True, 5)])
async def test_the_policy_version_is_that_of_the_weights_being_sampled(step: int, validate: bool, version: int) -> None:
    ends = [good("a", i, version) for i in range(1 if validate else N)]
    scene = Scene(play(*ends))
    await scene.run("a", step=step, validate=validate)
    assert scene.told("open") == [("open", "p", version)]
    assert scene.sink.tags == {"a": "finished"}


async def test_the_request_says_what_the_configuration_says() -> None:
    scene = Scene(play(*(good("a", i) for i in range(N))), rollway__max_tokens=9, rollway__max_concurrent=3)
    await scene.run("a")
    (request,) = scene.dispatcher.requests
    assert [(g.group_id, g.n, g.payload) for g in request.groups] == [("a", N, {"prompt": "a"})]
    assert request.capture is not None and request.capture.pool == "p"
    assert (request.s3_bucket, request.model_id, request.limits.max_concurrent) == ("bucket", "/models/m", 3)
    assert request.sampling_params["max_tokens"] == 9
    assert request.limits.rollout_timeout_s == 1800
    assert scene.dispatcher.keys == ["k1"]


async def test_a_group_keeps_its_survivors_when_two_are_left() -> None:
    scene = Scene(play(good("a", 0), dead("a", 1), dead("a", 2), good("a", 3)))
    await scene.run("a")
    assert [s.index for s in scene.sink.rows["a"]] == [0, 3]
    assert scene.sink.tags == {"a": "finished"}


async def test_a_group_with_a_lone_survivor_has_no_row_at_all() -> None:
    scene = Scene(play(good("a", 0), dead("a", 1), dead("a", 2), dead("a", 3)))
    await scene.run("a")
    assert scene.sink.rows == {} and scene.sink.tags == {"a": "failure"} and scene.last == [(1, 0)]


async def test_validation_keeps_a_lone_survivor_and_counts_no_training_rows() -> None:
    scene = Scene(play(good("a", 0), dead("a", 1)), actor_rollout_ref__rollout__val_kwargs={
        "n": 2, "temperature": 0, "top_p": 1.0, "top_k": -1})  # fmt: skip
    await scene.run("a", step=0, validate=True)
    assert scene.sink.tags == {"a": "finished"} and scene.last == []
    assert scene.told("tag") == [("tag", "val", "a", "finished")]


def set_submit(scene: Scene, error: Exception) -> None:
    scene.dispatcher.submit_error = error


def set_open(scene: Scene, error: Exception) -> None:
    scene.gate.open_error = error


@pytest.mark.parametrize("where", [set_submit, set_open])
async def test_an_unreachable_service_fails_every_prompt_and_is_raised(
    where: Callable[[Scene, Exception], None],
) -> None:
    scene = Scene(play())
    where(scene, Unavailable("down"))
    with pytest.raises(Unavailable, match="down"):
        await scene.run("a", "b")
    assert scene.sink.tags == {"a": "failure", "b": "failure"}
    assert scene.told("cancel") == []


async def test_a_stream_that_breaks_keeps_committed_groups_and_cancels_the_rest() -> None:
    ends = [*(good("a", i) for i in range(N)), good("b", 0), good("b", 1), TimeoutError("batch not finished")]
    scene = Scene(play(*ends))
    with pytest.raises(TimeoutError):
        await scene.run("a", "b")
    assert scene.sink.tags == {"a": "finished", "b": "failure"} and "b" not in scene.sink.rows
    assert scene.told("cancel") == [("cancel", "b0")]
    assert scene.diary[-2:] == [("fence", "p"), ("tag", "train", "b", "failure")]


async def test_a_batch_that_cannot_be_cancelled_still_lets_verl_go_on() -> None:
    scene = Scene(play(good("a", 0), Unavailable("dispatcher is down")))
    scene.dispatcher.cancel_error = Unavailable("still down")
    with pytest.raises(Unavailable, match="dispatcher is down"):
        await scene.run("a")
    assert scene.sink.tags == {"a": "failure"}


async def test_a_fence_that_fails_still_lets_verl_go_on_and_is_raised() -> None:
    scene = Scene(play(*(good("a", i) for i in range(N))))
    scene.gate.fence_error = Unavailable("gateway is down")
    with pytest.raises(Unavailable):
        await scene.run("a")
    assert scene.sink.tags == {"a": "finished"}


async def test_rows_that_cannot_be_put_become_a_failure_tag() -> None:
    scene = Scene(play(*(good("a", i) for i in range(N))))
    scene.sink.put_error = RuntimeError("queue is gone")
    with pytest.raises(RuntimeError, match="queue is gone"):
        await scene.run("a", "b")
    assert scene.sink.tags == {"a": "failure", "b": "failure"}


async def test_a_result_nobody_asked_for_ends_the_batch_loudly() -> None:
    scene = Scene(play(good("other", 0)))
    with pytest.raises(RollwayError, match="did not ask for"):
        await scene.run("a")
    assert scene.sink.tags == {"a": "failure"} and scene.told("cancel")


async def test_a_broken_set_up_stops_the_run_with_the_dispatchers_words() -> None:
    ends = [dead("a", i, FailureType.CONTRACT_ERROR, "no bucket rewards") for i in range(N)]
    scene = Scene(play(*ends))
    with pytest.raises(BatchBroken, match="no bucket rewards"):
        await scene.run("a")
    assert scene.sink.tags == {"a": "failure"}


async def test_cancellation_tags_every_prompt_and_stops_the_batch() -> None:
    never, begun = asyncio.Event(), asyncio.Event()

    async def script(request: BatchRequest) -> AsyncIterator[Ended]:
        begun.set()
        await never.wait()
        yield good("a", 0)

    scene = Scene(script)
    task = asyncio.create_task(scene.run("a", "b"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scene.sink.tags == {"a": "failure", "b": "failure"}
    assert scene.told("cancel") == [("cancel", "b0")] and scene.told("fence")


async def test_a_refill_keeps_the_pool_open_until_both_batches_are_done() -> None:
    """verl posts a replacement while the first batch's other groups still run."""
    first_goes_on = asyncio.Event()
    scripts = {
        "a": play(*(dead("a", i) for i in range(N)), first_goes_on, *(good("b", i) for i in range(N))),
        "c": play(*(good("c", i) for i in range(N))),
    }
    scene = Scene(lambda request: scripts[request.groups[0].group_id](request))
    first = asyncio.create_task(scene.run("a", "b"))
    await eventually(lambda: "a" in scene.sink.tags, "a's tag")
    await scene.run("c")
    assert scene.told("fence") == [] and scene.sink.tags == {"a": "failure", "c": "finished"}
    first_goes_on.set()
    await first
    assert scene.diary[-2:] == [("fence", "p"), ("tag", "train", "b", "finished")]
    assert scene.last == [(1, 2 * N)]


async def test_the_line_of_figures_is_written_before_verl_can_train(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "batches.jsonl"
    ends = [*(good("a", i) for i in range(N)), *(dead("b", i) for i in range(N))]
    scene = Scene(play(*ends), rollway__metrics_path=path)
    await scene.run("a", "b")
    (line,) = [json.loads(x) for x in path.read_text().splitlines()]
    assert (line["step"], line["validate"], line["policy_version"], line["batch_id"]) == (1, False, 0, "b0")
    assert (line["groups"], line["groups_trained"], line["rollouts"], line["rollouts_trained"]) == (2, 1, 8, 4)
    assert line["failures"] == {"agent_died": 4}
    assert (line["reward_mean"], line["reward_min"], line["reward_max"]) == (1.5, 0, 3)
    assert (line["trained_tokens"], line["rows"], line["sequences_per_session"], line["turns_mean"]) == (8, 4, 1, 2)
    assert (line["fidelity"], line["mirror_reasons"]) == (0.0, ["not said"])
    assert line["ledger"]["trained"] == 8 and line["error"] is None


async def test_a_failed_batch_leaves_its_line_too(tmp_path: Path) -> None:
    scene = Scene(play(TimeoutError("too late")), rollway__metrics_path=tmp_path / "b.jsonl")
    with pytest.raises(TimeoutError):
        await scene.run("a")
    (line,) = [json.loads(x) for x in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert line["error"] == "TimeoutError: too late" and line["reward_mean"] is None


async def test_each_group_leaves_its_trajectories_as_one_packed_file(tmp_path: Path) -> None:
    scene = Scene(play(good("a", 0), dead("a", 1), good("a", 2), good("a", 3)), rollway__trajectories_dir=tmp_path)
    await scene.run("a")
    tree = load_packed((tmp_path / "step-000001-train" / "a.rwpk").read_bytes())
    kept = [(r["rollout"]["index"], r["trajectory"] and load_trajectory(r["trajectory"])) for r in tree["results"]]
    assert [index for index, _ in kept] == [0, 1, 2, 3]
    assert kept[0][1] == good("a", 0)[1] and kept[1][1] is None
