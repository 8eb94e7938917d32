"""One telling value of every type that crosses a process boundary, and its golden files.

``python -m tests.wire.examples`` writes the files anew: only after a change of the wire that is meant, since every
deployed peer reads the old ones.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rollway_wire import batch, codec, failures, gateway, ids, problems, rollout
from rollway_wire.routing import RoutedExperts, Rows
from rollway_wire.tokens import NO_VERSION, Ledger, Sequence, Trajectory, Turn

GOLDEN = Path(__file__).parent / "golden"
SESSION = "0f8fad5b-d9cb-469f-a165-70867728950e"
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-agent"


def turn(**changed: Any) -> Turn:
    fields: dict[str, Any] = {
        "turn_id": "t-0", "call_id": "c-0", "index": 0, "choice": 0,
        "prompt_token_ids": array("i", [1, 4093, 198]), "completion_token_ids": array("i", [36, 2]),
        "logprobs": array("f", [-0.25, -1.5]), "finish_reason": "stop", "model": "smol", "worker": "w-1",
        "policy_version_start": 3, "policy_version_end": 4,
        "started_at": 1700000000.25, "first_token_at": 1700000000.5, "ended_at": 1700000001.0, "incomplete": None,
    }  # fmt: skip
    return Turn(**{**fields, **changed})


def sequence(**changed: Any) -> Sequence:
    fields: dict[str, Any] = {
        "token_ids": array("i", [1, 4093, 198, 36, 2]), "loss_mask": array("B", [0, 0, 0, 1, 1]),
        "logprobs": array("f", [0.0, 0.0, 0.0, -0.25, -1.5]),
        "policy_versions": array("i", [NO_VERSION, NO_VERSION, NO_VERSION, 3, 3]), "turn_ids": ("t-0",),
    }  # fmt: skip
    return Sequence(**{**fields, **changed})


def trajectory() -> Trajectory:
    aborted = turn(
        turn_id="t-1", call_id="c-1", index=1, completion_token_ids=array("i", [7]), logprobs=array("f"),
        finish_reason=None, first_token_at=None, incomplete="the engine returned no log-probs",
    )  # fmt: skip
    return Trajectory(
        session_id=SESSION, mode="mirror", turns=(turn(), aborted), sequences=(sequence(),),
        ledger=Ledger(sampled=3, trained=2, lost=1), incomplete="turn t-1 is incomplete",
        metadata={"sampling_params": {"temperature": 1.0}, "note": "größer"},
    )  # fmt: skip


def routed_trajectory() -> Trajectory:
    """Two turns, the second going on from the first, routed through 1 layer to 2 experts of more than 256."""
    first = turn(routed_experts=RoutedExperts(layers=1, top_k=2, data=array("H", [0, 1, 2, 3, 4, 5, 6, 300])))
    second = turn(
        turn_id="t-1", call_id="c-1", index=1, prompt_token_ids=array("i", [1, 4093, 198, 36, 2, 9, 10]),
        routed_experts=RoutedExperts(
            start=4, after="t-0", layers=1, top_k=2, data=array("H", [8, 9, 10, 11, 12, 13, 14, 15])
        ),
    )  # fmt: skip
    third = turn(turn_id="t-2", call_id="c-2", index=2, unrouted="the engine returned no routed experts")
    row = Sequence(
        token_ids=second.prompt_token_ids + second.completion_token_ids,
        loss_mask=array("B", [0, 0, 0, 1, 1, 0, 0, 1, 1]),
        logprobs=array("f", [0.0, 0.0, 0.0, -0.25, -1.5, 0.0, 0.0, -0.25, -1.5]),
        policy_versions=array("i", [-1, -1, -1, 3, 3, -1, -1, 3, 3]), turn_ids=("t-0", "t-1"),
        routing=(Rows("t-0", 0, 4), Rows("t-1", 4, 8)),
    )  # fmt: skip
    unrouted = sequence(turn_ids=("t-2",), unrouted="turn t-2: the engine returned no routed experts")
    return Trajectory(
        session_id=SESSION, mode="exact", turns=(first, second, third), sequences=(row, unrouted),
        ledger=Ledger(sampled=6, trained=6), incomplete=None, metadata={},
    )  # fmt: skip


FAILURE = failures.Failure(type=failures.FailureType.AGENT_ERROR, message="KeyError: 'answer'", traceback="Traceback …")
TIMINGS = batch.Timings(
    admitted_at=1700000000.0, invoked_at=1700000000.5, noticed_at=1700000009.0, finished_at=1700000009.5
)
RESULT = batch.RolloutResult(
    rollout_id="b1/g1/0", batch_id="b1", group_id="g1", index=0, state=batch.RolloutState.SUCCEEDED, attempt=1,
    session_id=SESSION, failure=None, rewards=[1.0], result={"rewards": 1.0, "status_code": 200}, timings=TIMINGS,
)  # fmt: skip
WORKER = gateway.WorkerState(
    worker_id="w-1", url="http://10.0.0.1:8000", api_path="/v1", model_name="smol", weight=1, healthy=False,
    active_requests=0, detail="connection refused",
    ledger=gateway.WorkerLedger(
        since=1700000000.0, captured=120, engine=110, difference=10, closes=True, cut_off=10, as_of=1700000050.0,
        pending=20, uncertain=None,
    ),
)  # fmt: skip

MODELS: dict[str, BaseModel] = {
    "rollout_config": rollout.RolloutConfig(
        exp_id="exp/b1", input_id="g1", s3_bucket="results", base_url=f"http://gw:9000/sessions/{SESSION}/v1",
        model_id="smol", sampling_params={"temperature": 1.0, "max_tokens": 256}, api_key="sk-rollway-x",
        report=rollout.ReportTarget(url="http://dispatcher:9100/v1/reports", key="rk-x", interval_s=5.0),
        difficulty="hard",
    ),
    "receipt": rollout.Receipt(status="processing", s3_bucket="results", result_key=f"exp/b1/g1/{SESSION}.json"),
    "report": rollout.Report(session_id=SESSION, event="done", status_code=200, result_key=f"exp/b1/g1/{SESSION}.json"),
    "saved_result": rollout.SavedResult(
        status_code=200, stop_reason="end_turn", input_id="g1", s3_bucket="results",
        result_key=f"exp/b1/g1/{SESSION}.json", payload={"prompt": "2+2?"}, rewards=[1.0], steps=3,
    ),
    "batch_request": batch.BatchRequest(
        experiment_id="exp", model_id="smol", sampling_params={"temperature": 1.0},
        groups=[batch.Group(group_id="g1", payload={"prompt": "2+2?", "answer": "4"}, n=4)],
        runtime=batch.AgentCoreRuntime(agent_runtime_arn=ARN, endpoint_url="http://127.0.0.1:9200", tps_limit=25.0),
        capture=batch.Capture(pool="trainer-1"), rollout={"difficulty": "hard"},
        limits=batch.Limits(rollout_timeout_s=600.0, max_concurrent=8, max_attempts=2), s3_bucket="results",
        policy=batch.Policy(admission="gang", extra=2, extra_start="straggler", deadline_s=900.0),
    ),
    "batch_request_http": batch.BatchRequest(
        groups=[batch.Group(group_id="g1", payload={})], capture=None, require_rewards=False,
        runtime=batch.HttpRuntime(urls=["http://10.0.0.2:8080"], sessions_per_url=2),
    ),
    "batch_request_kubernetes": batch.BatchRequest(
        groups=[batch.Group(group_id="g1", payload={})],
        runtime=batch.KubernetesRuntime(
            image="registry/agent:1", namespace="agents", service_account="agent", max_pods=100,
            resources={"requests": {"cpu": "500m"}}, pod_spec={"nodeSelector": {"pool": "agents"}},
        ),
    ),
    "batch_request_process": batch.BatchRequest(
        groups=[batch.Group(group_id="g1", payload={})],
        runtime=batch.ProcessRuntime(
            command=["python", "rl_app.py"], cwd="agents", env={"LEVEL": "1"},
            limits=batch.ProcessLimits(memory_bytes=2**31, cpu_s=600, open_files=256),
        ),
    ),
    "batch_status": batch.BatchStatus(
        batch_id="b1", experiment_id="exp", state=batch.BatchState.FINISHED, created_at=1700000000.0,
        finished_at=1700000100.0, total=4,
        counts={batch.RolloutState.SUCCEEDED: 3, batch.RolloutState.FAILED: 1}, failures={"agent_error": 1},
    ),
    "rollout_view": batch.RolloutView(
        rollout_id="b1/g1/3", batch_id="b1", group_id="g1", index=3, state=batch.RolloutState.FAILED, attempt=2,
        session_id=SESSION, failure=FAILURE,
    ),
    "webhook": batch.Webhook(url="https://hooks.example.com/x", events=["rollout.finished", "batch.finished"]),
    "webhook_status": batch.WebhookStatus(state="open", delivered=3, attempt=1, last_error="answered 500"),
    "failure_reason": batch.FailureReason(
        type=failures.FailureType.AGENT_ERROR, message="division by zero", rollouts=3, group_ids=["g1", "g2"]
    ),
    "session_view": batch.SessionView(
        session_id=SESSION, state="running", since=1700000000.0, runtime="process", batch_id="b1", group_id="g1",
        index=3,
    ),
    "stop_sessions": batch.StopSessions(session_ids=[SESSION]),
    "rollout_result": RESULT,
    "results_page": batch.ResultsPage(
        results=[{"rollout": RESULT.model_dump(mode="json"), "trajectory": None}], cursor=1, finished=False
    ),
    "failure": FAILURE,
    "session_spec": gateway.SessionSpec(
        session_id=SESSION, pool="trainer-1", sampling_params={"temperature": 1.0}, metadata={"rollout_id": "b1/g1/0"},
        max_prompt_tokens=1024, max_response_tokens=512,
    ),
    "session_ticket": gateway.SessionTicket(
        session_id=SESSION, base_url=f"http://gw:9000/sessions/{SESSION}/v1", api_key="sk-rollway-x"
    ),
    "worker_spec": gateway.WorkerSpec(
        url="http://10.0.0.1:8000/v1", worker_id="w-1", model_name="smol", weight=2, tokenizer="/models/smol"
    ),
    "worker_state": WORKER,
    "pool_load": gateway.PoolLoad(
        workers=[gateway.EngineLoad(worker_id="w-0", running=12, waiting=3, kv_usage=0.75)],
    ),
    "pool_state": gateway.PoolState(
        pool="trainer-1", gate="fenced", policy_version=3, in_flight=0, sessions=4, workers=[WORKER]
    ),
    "open_pool": gateway.OpenPool(policy_version=4),
    "pause_pool": gateway.PausePool(in_flight="abort", timeout_s=5),
    "drain_worker": gateway.DrainWorker(timeout_s=5),
    "fence_pool": gateway.FencePool(drain_timeout_s=60.0, abort=False),
}  # fmt: skip

TREES: dict[str, Any] = {
    "turn": codec.turn_tree(turn()),
    "sequence": codec.sequence_tree(sequence()),
    "trajectory": codec.trajectory_tree(trajectory()),
    "trajectory_routed": codec.trajectory_tree(routed_trajectory()),
    "results_page_packed": {
        "results": [{"rollout": RESULT.model_dump(mode="json"), "trajectory": codec.trajectory_tree(trajectory())}],
        "cursor": 1,
        "finished": True,
    },
    "agents_own_array": {
        "result": {"$array": ["i", 0, 1]},
        "ids": array("i", [7]),
        "deeper": {"$$array": {"$array": 1}},
    },
}
"""What also travels packed."""

OTHERS: dict[str, Any] = {
    "ledger": {
        name: getattr(Ledger(sampled=15, trained=5, context=4, duplicate=3, orphaned=2, lost=1), name)
        for name in Ledger.__dataclass_fields__
    },
    "problem": problems.Unavailable("pool is fenced", retry_after_s=2.0, pool="trainer-1").problem("/v1/x"),
    "names": {
        "result_key": ids.result_key("exp/b1", "g1", SESSION),
        "statuses": {str(status): cls.code for status, cls in problems.BY_STATUS.items()},
        "failure_types": sorted(failures.FailureType),
        "retryable": sorted(failures.RETRYABLE),
        "rollout_states": list(batch.RolloutState),
        "terminal_states": sorted(batch.TERMINAL),
        "batch_states": list(batch.BatchState),
        "media_type": codec.MEDIA_TYPE,
    },
}


def json_documents() -> dict[str, Any]:
    """Every example as JSON values, by the name of its file."""
    dumped = {name: model.model_dump(mode="json") for name, model in MODELS.items()}
    return dumped | {name: codec.to_json_tree(tree) for name, tree in TREES.items()} | OTHERS


LOADERS: dict[str, Callable[[Any], Any]] = {
    "turn": codec.load_turn,
    "sequence": codec.load_sequence,
    "trajectory": codec.load_trajectory,
    "trajectory_routed": codec.load_trajectory,
}


def write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for name, document in json_documents().items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    for name, tree in TREES.items():
        (GOLDEN / f"{name}.hex").write_text(codec.dump_packed(tree).hex("\n", 32) + "\n")


if __name__ == "__main__":
    write()
