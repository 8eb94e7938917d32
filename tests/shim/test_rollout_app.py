"""The app over HTTP: receipts, the saved document, errors, /ping, refusals, repeats."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollway_shim import AgentCoreRLApp, RewardFunction, RolloutApp
from rollway_shim.invocation import read_invocation
from rollway_wire.rollout import SavedResult
from tests.shim.conftest import Bucket
from tests.shim.servers import DEADLINE_S, block_the_loop, serving, wait_for


def _sync(payload: dict[str, Any]) -> dict[str, Any]:
    return {"rewards": payload["gold"]}


def _sync_context(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    return {"rewards": payload["gold"], "session": context.session_id}


async def _async(payload: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"rewards": payload["gold"]}


async def _async_context(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    return {"rewards": payload["gold"], "session": context.session_id}


class _AsyncObject:
    async def __call__(self, payload: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"rewards": payload["gold"], "session": context.session_id}


@pytest.mark.parametrize(
    "function", [_sync, _sync_context, _async, _async_context, functools.partial(_sync_context), _AsyncObject()]
)
def test_any_shape_of_agent_is_answered_at_once_and_saved(function: Any, bucket: Bucket, session_id: str) -> None:
    """Sync or async, with or without context: receipt now, the promised document at the promised key."""
    app = RolloutApp()
    app.rollout_entrypoint(function)
    payload = {"prompt": "2+2", "gold": 1.5, "_rollout": bucket.rollout(model_id="m", extra={"x": [1]})}
    with serving(app) as client:
        status, receipt = client.invoke(payload, session_id)
        key = f"exp/b1/g1/{session_id}.json"
        assert (status, receipt) == (200, {"status": "processing", "s3_bucket": bucket.name, "result_key": key})
        document = bucket.saved(receipt)
    assert document.pop("session", session_id) == session_id
    assert document == {
        "rewards": 1.5,
        "status_code": 200,
        "stop_reason": "end_turn",
        "input_id": "g1",
        "s3_bucket": bucket.name,
        "result_key": key,
        "payload": payload,
    }
    SavedResult.model_validate(document)


def test_the_receipt_does_not_wait_and_ping_is_busy_until_the_result_is_saved(bucket: Bucket, session_id: str) -> None:
    """HealthyBusy from the receipt to the saved object, Healthy before and after; also while an async agent blocks."""
    app, at_work, go = RolloutApp(), threading.Event(), threading.Event()

    @app.rollout_entrypoint
    async def agent(payload: dict[str, Any]) -> dict[str, Any]:
        at_work.set()
        block_the_loop(go)
        return {"rewards": 0}

    with serving(app) as client:
        assert client.ping() == "Healthy"
        _, receipt = client.invoke({"_rollout": bucket.rollout()}, session_id)
        assert client.ping() == "HealthyBusy"
        assert at_work.wait(DEADLINE_S)
        assert client.ping() == "HealthyBusy"
        assert bucket.read(receipt["result_key"]) is None
        go.set()
        assert bucket.saved(receipt)["status_code"] == 200
        wait_for("Healthy again", lambda: client.ping() == "Healthy")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_is_saved_with_its_traceback(is_async: bool, bucket: Bucket) -> None:
    app = RolloutApp()

    def fail(payload: dict[str, Any]) -> dict[str, Any]:
        raise LookupError(f"no tool named {payload['tool']}")

    async def fail_async(payload: dict[str, Any]) -> dict[str, Any]:
        return fail(payload)

    app.rollout_entrypoint(fail_async if is_async else fail)
    payload = {"tool": "abacus", "_rollout": bucket.rollout()}
    with serving(app) as client:
        document = bucket.saved(client.invoke(payload)[1])
        wait_for("Healthy again", lambda: client.ping() == "Healthy")
    assert (document["status_code"], document["stop_reason"]) == (500, "no tool named abacus")
    assert "LookupError" in document["traceback"] and "in fail" in document["traceback"]
    assert document["payload"] == payload and document["input_id"] == "g1"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_that_exits_is_an_error_and_the_next_one_still_runs(is_async: bool, bucket: Bucket) -> None:
    """sys.exit() in an agent ends that rollout, never the server or the agents' loop."""
    app = RolloutApp()

    def leave(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["leave"]:
            raise SystemExit("enough")
        return {"rewards": 1}

    async def leave_async(payload: dict[str, Any]) -> dict[str, Any]:
        return leave(payload)

    app.rollout_entrypoint(leave_async if is_async else leave)
    with serving(app) as client:
        gone = bucket.saved(client.invoke({"leave": True, "_rollout": bucket.rollout()})[1])
        fine = bucket.saved(client.invoke({"leave": False, "_rollout": bucket.rollout()})[1])
    assert (gone["status_code"], gone["stop_reason"]) == (500, "enough")
    assert fine["rewards"] == 1


def test_a_cancelled_agent_is_saved_as_cancelled(bucket: Bucket) -> None:
    """A CancelledError out of the agent is stop_reason "cancelled", status_code 500."""
    app = RolloutApp()

    @app.rollout_entrypoint
    async def agent(payload: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)
        return {}

    with serving(app) as client:
        document = bucket.saved(client.invoke({"_rollout": bucket.rollout()})[1])
    assert (document["status_code"], document["stop_reason"]) == (500, "cancelled")
    assert "CancelledError" in document["traceback"]


def test_an_agent_cancelled_before_its_first_step_never_runs_and_is_saved_as_cancelled(bucket: Bucket) -> None:
    """Its loop is held by another agent meanwhile. Nobody has to wait for half of the grace time to see it."""
    app, held, go = RolloutApp(), threading.Event(), threading.Event()
    ran: list[str] = []

    @app.rollout_entrypoint
    async def agent(payload: dict[str, Any]) -> dict[str, Any]:
        ran.append(payload["who"])
        held.set()
        block_the_loop(go)
        return {"rewards": 1}

    def begin(who: str) -> Any:
        invocation = read_invocation({"who": who, "_rollout": bucket.rollout()}, f"session-{who}")
        assert app.rollout_handler is not None
        return app.rollouts.begin(invocation, app.rollout_handler, None)

    first = begin("first")
    assert held.wait(DEADLINE_S)
    second = begin("second")
    second.cancel()
    go.set()
    documents = [rollout.finished.result(DEADLINE_S).document for rollout in (first, second)]
    app.rollouts.close(DEADLINE_S)
    assert [(d["status_code"], d["stop_reason"]) for d in documents] == [(200, "end_turn"), (500, "cancelled")]
    assert ran == ["first"] and bucket.read("exp/b1/g1/session-second.json") == documents[1]


def test_the_agents_own_values_stand_except_for_reserved_keys(bucket: Bucket) -> None:
    """status_code and stop_reason are defaults; input_id, s3_bucket, result_key and payload are always the shim's."""
    app = RolloutApp()

    @app.rollout_entrypoint
    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        payload["prompt"] = "changed by the agent"
        return {"status_code": 206, "stop_reason": "max_turns", "input_id": "x", "s3_bucket": "x", "result_key": "x",
                "payload": "x", "metrics": {"turns": 3}}  # fmt: skip

    with serving(app) as client:
        _, receipt = client.invoke({"prompt": "as sent", "_rollout": bucket.rollout()})
        document = bucket.saved(receipt)
    assert (document["status_code"], document["stop_reason"], document["metrics"]) == (206, "max_turns", {"turns": 3})
    assert (document["input_id"], document["s3_bucket"]) == ("g1", bucket.name)
    assert (document["result_key"], document["payload"]["prompt"]) == (receipt["result_key"], "as sent")


def test_no_key_is_ever_saved(bucket: Bucket) -> None:
    """`_rollout.api_key` and `_rollout.report.key` are redacted in the echo, in base_url and in error texts."""
    app = RolloutApp()
    sample, report = "sk-sample-0123456789", "rk-report-0123456789"

    @app.rollout_entrypoint
    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        assert payload["_rollout"]["api_key"] == sample
        raise ValueError(f"401 for {payload['_rollout']['api_key']}, {payload['_rollout']['report']['key']}")

    config = bucket.rollout(
        api_key=sample,
        base_url=f"http://gw/k/{sample}/v1",
        report={"url": "http://127.0.0.1:9/", "key": report},
    )
    with serving(app) as client:
        document = bucket.saved(client.invoke({"prompt": "p", "_rollout": config})[1])
    text = json.dumps(document)
    assert sample not in text and report not in text
    echoed = document["payload"]["_rollout"]
    assert echoed["api_key"] == echoed["report"]["key"] == "[redacted]"
    assert echoed["base_url"] == "http://gw/k/[redacted]/v1" and echoed["report"]["url"] == "http://127.0.0.1:9/"
    assert document["stop_reason"] == "401 for [redacted], [redacted]"


@pytest.mark.parametrize("rollout", ["absent", None, {}, {"base_url": "http://gw", "sampling_params": {}}])
def test_without_s3_fields_the_agent_runs_and_nothing_is_saved(rollout: Any, bucket: Bucket) -> None:
    app, ran = RolloutApp(), threading.Event()

    @app.rollout_entrypoint
    def agent(payload: dict[str, Any]) -> str:
        ran.set()
        return "anything"

    payload = {"prompt": "p"} | ({} if rollout == "absent" else {"_rollout": rollout})
    with serving(app) as client:
        assert client.invoke(payload) == (200, {"status": "processing"})
        wait_for("the agent ran", ran.is_set)
        wait_for("Healthy again", lambda: client.ping() == "Healthy")
    assert "Contents" not in bucket.s3.list_objects_v2(Bucket=bucket.name)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"_rollout": {"exp_id": "e", "s3_bucket": "b"}}, "_rollout.input_id missing"),
        ({"_rollout": {"input_id": "i"}}, "_rollout.exp_id and _rollout.s3_bucket missing"),
        ({"_rollout": {"exp_id": "e", "input_id": None, "s3_bucket": "b"}}, "_rollout.input_id missing"),
        ({"_rollout": {"exp_id": "", "input_id": "i", "s3_bucket": "b"}}, "_rollout.exp_id"),
        ({"_rollout": {"exp_id": "e", "input_id": "i", "s3_bucket": "b", "sampling_params": 3}}, "sampling_params"),
        ({"_rollout": {"report": {"url": "http://h/"}}}, "_rollout.report.key"),
        ({"_rollout": {"report": {"url": "file:///etc/hosts", "key": "k"}}}, "_rollout.report.url"),
        ({"_rollout": "yes"}, "_rollout must be an object"),
        ([1, 2], "must be a JSON object"),
        (b"{not json", "Invalid JSON"),
    ],
)
def test_a_bad_invocation_is_refused_before_anything_runs(payload: Any, named: str, bucket: Bucket) -> None:
    """4xx (500 where bedrock-agentcore knows no other) with the field's name; the agent does not run."""
    app, ran = RolloutApp(), threading.Event()

    @app.rollout_entrypoint
    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        ran.set()
        return {}

    with serving(app) as client:
        status, body = client.invoke(payload)
        assert client.ping() == "Healthy"
    assert status in (400, 500) and named in body["error"], body
    assert not ran.is_set()


def test_an_invocation_sent_again_runs_once(bucket: Bucket, session_id: str) -> None:
    """While it runs and after it has finished: same receipt, one run. Another session runs."""
    app, go = RolloutApp(), threading.Event()
    runs: list[str] = []

    @app.rollout_entrypoint
    def agent(payload: dict[str, Any], context: Any) -> dict[str, Any]:
        runs.append(context.session_id)
        go.wait()
        return {"rewards": len(runs)}

    payload = {"_rollout": bucket.rollout()}
    with serving(app) as client:
        first = client.invoke(payload, session_id)
        again = client.invoke(payload, session_id)
        go.set()
        bucket.saved(first[1])
        wait_for("Healthy again", lambda: client.ping() == "Healthy")
        later = client.invoke(payload, session_id)
        other = client.invoke(payload, "other-" + session_id)
        bucket.saved(other[1])
    assert first == again == later != other
    assert runs == [session_id, "other-" + session_id]


def test_many_rollouts_at_once_each_get_their_own_document(bucket: Bucket) -> None:
    """Sixty sessions in one container, all alive together, none waits for another."""
    app, together = RolloutApp(), threading.Barrier(60)

    @app.rollout_entrypoint
    def agent(payload: dict[str, Any]) -> dict[str, Any]:
        together.wait(60)
        return {"rewards": payload["n"]}

    with serving(app) as client:
        receipts = [client.invoke({"n": n, "_rollout": bucket.rollout()})[1] for n in range(60)]
        assert [bucket.saved(r)["rewards"] for r in receipts] == list(range(60))


def test_async_agents_share_one_event_loop(bucket: Bucket) -> None:
    """A client that an agent keeps in a global belongs to one loop, so every rollout runs on that one."""
    app = RolloutApp()
    loops: set[Any] = set()

    @app.rollout_entrypoint
    async def agent(payload: dict[str, Any]) -> dict[str, Any]:
        loops.add(asyncio.get_running_loop())
        return {"rewards": 0}

    with serving(app) as client:
        for receipt in [client.invoke({"_rollout": bucket.rollout()})[1] for _ in range(3)]:
            bucket.saved(receipt)
    assert len(loops) == 1


def test_the_agents_own_lifespan_outlasts_its_rollouts_and_the_app_can_be_served_again(bucket: Bucket) -> None:
    """What the agent opened is still open while its rollouts unwind at shutdown, and a second start is a fresh one."""
    told: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        told.append("open")
        yield {"pool": 1}
        told.append("close")

    app = RolloutApp(lifespan=lifespan, shutdown_grace_s=60)

    @app.rollout_entrypoint
    async def agent(payload: dict[str, Any]) -> dict[str, Any]:
        try:
            told.append("run")
            await asyncio.sleep(3600)
        finally:
            told.append("unwind")
        return {}

    for _ in range(2):
        with serving(app) as client:
            _, receipt = client.invoke({"_rollout": bucket.rollout()})
            wait_for("the agent runs", lambda: told[-1] == "run")
        assert told == ["open", "run", "unwind", "close"]
        assert (bucket.read(receipt["result_key"]) or {})["stop_reason"] == "cancelled"
        told.clear()


def test_a_function_that_cannot_be_an_agent_is_refused_where_it_is_decorated() -> None:
    app = RolloutApp()

    def generator(payload: dict[str, Any]) -> Any:
        yield payload

    def greedy(payload: dict[str, Any], context: Any, more: Any) -> dict[str, Any]:
        return {}

    with pytest.raises(TypeError, match="generator"):
        app.rollout_entrypoint(generator)
    with pytest.raises(TypeError, match="greedy must take"):
        app.rollout_entrypoint(greedy)
    with pytest.raises(TypeError, match="decorates a function"):
        app.rollout_entrypoint(3)  # type: ignore[arg-type]


def test_an_agent_of_the_toolkit_runs_by_its_import_alone(bucket: Bucket) -> None:
    """AgentCoreRLApp(), the decorator, a RewardFunction called with keywords, `_rollout` read by subscript."""
    assert AgentCoreRLApp is RolloutApp
    app = AgentCoreRLApp()

    class ExactMatch(RewardFunction):
        def __call__(self, response_text: str = "", ground_truth: str = "", **kwargs: Any) -> float:
            return float(response_text == ground_truth)

    reward = ExactMatch()

    @app.rollout_entrypoint
    def invoke_agent(payload: dict[str, Any], context: Any) -> dict[str, Any]:
        model = payload["_rollout"]["model_id"]
        params = payload["_rollout"].get("sampling_params", {})
        assert (model, params) == ("m", {"max_tokens": 8})
        return {"rewards": reward(response_text=payload["prompt"], ground_truth=payload["answer"])}

    config = bucket.rollout(base_url="http://gw/v1", model_id="m", sampling_params={"max_tokens": 8})
    with serving(app) as client:
        document = bucket.saved(client.invoke({"prompt": "4", "answer": "4", "_rollout": config})[1])
    assert document["rewards"] == 1.0
    with pytest.raises(TypeError, match="abstract"):
        RewardFunction()  # type: ignore[abstract]
