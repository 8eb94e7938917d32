"""Values the driver's tests share: results and trajectories as the dispatcher gives them, a trainer's configuration."""

from __future__ import annotations

import copy
from array import array
from dataclasses import replace
from typing import Any

from rollway_driver.verl.rows import RowRules
from rollway_driver.verl.trainer_facts import Budget
from rollway_wire.batch import RolloutResult, RolloutState, Timings
from rollway_wire.failures import Failure, FailureType
from rollway_wire.routing import RoutedExperts, Rows
from rollway_wire.tokens import IDS, LOGPROBS, MASK, NO_VERSION, VERSIONS, Ledger, Sequence, Trajectory, Turn

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-agent"


def sequence(parts: list[tuple[int, int]], *, version: int = 0, turn_ids: tuple[str, ...] = ("t0",)) -> Sequence:
    """A sequence of runs of (tokens, mask)."""
    mask = [m for count, m in parts for _ in range(count)]
    return Sequence(
        token_ids=array(IDS, range(10, 10 + len(mask))),
        loss_mask=array(MASK, mask),
        logprobs=array(LOGPROBS, [-0.5 * m for m in mask]),
        policy_versions=array(VERSIONS, [version if m else NO_VERSION for m in mask]),
        turn_ids=turn_ids,
    )


def trajectory(*sequences: Sequence, session_id: str = "s", incomplete: str | None = None) -> Trajectory:
    trained = sum(s.trained_tokens for s in sequences)
    turns = tuple(
        Turn(
            turn_id=f"t{i}", call_id=f"c{i}", index=i, prompt_token_ids=array(IDS, [1]),
            completion_token_ids=array(IDS, [2]), logprobs=array(LOGPROBS, [-0.1]), finish_reason="stop",
            policy_version_start=0, policy_version_end=0, started_at=0.0, ended_at=1.0,
        )
        for i in range(2)
    )  # fmt: skip
    return Trajectory(
        session_id=session_id, mode="mirror", turns=turns, sequences=sequences,
        ledger=Ledger(sampled=trained, trained=trained), incomplete=incomplete,
    )  # fmt: skip


def routed_trajectory(
    parts: list[tuple[int, int]], *, layers: int = 3, top_k: int = 2, wide: bool = False
) -> Trajectory:
    """One turn whose sequence has these runs; row r holds the ids from ``r * layers * top_k`` on."""
    base = sequence(parts)
    n, first = len(base.token_ids), base.prompt_length
    kind = "H" if wide else "B"
    ids = array(kind, [i % (1 << 15 if wide else 1 << 8) for i in range((n - 1) * layers * top_k)])
    only = Turn(
        turn_id="t0", call_id="c0", index=0, prompt_token_ids=base.token_ids[:first],
        completion_token_ids=base.token_ids[first:], logprobs=array(LOGPROBS, [-0.5] * (n - first)),
        finish_reason="stop", policy_version_start=0, policy_version_end=0, started_at=0.0, ended_at=1.0,
        routed_experts=RoutedExperts(layers=layers, top_k=top_k, data=ids),
    )  # fmt: skip
    return Trajectory(
        session_id="s", mode="exact", turns=(only,), sequences=(replace(base, routing=(Rows("t0", 0, n - 1),)),),
        ledger=Ledger(sampled=base.trained_tokens, trained=base.trained_tokens),
    )  # fmt: skip


def result(
    group_id: str = "g",
    index: int = 0,
    *,
    rewards: list[float] | None = None,
    failure: FailureType | None = None,
    message: str = "gone",
) -> RolloutResult:
    """A rollout that succeeded with ``rewards``, or failed as ``failure``."""
    return RolloutResult(
        rollout_id=f"b/{group_id}/{index}", batch_id="b", group_id=group_id, index=index,
        state=RolloutState.FAILED if failure else RolloutState.SUCCEEDED, attempt=1, session_id="s",
        failure=Failure(type=failure, message=message) if failure else None,
        rewards=None if failure else rewards if rewards is not None else [1.0], result=None, timings=Timings(),
    )  # fmt: skip


def rules(**other: Any) -> RowRules:
    given = {"policy_version": 0, "budget": Budget(prompt=50, response=50), "group_relative": True, "reward": "last"}
    return RowRules(**{**given, **other})


_CONFIG: dict[str, Any] = {
    "trainer": {
        "use_v1": True, "v1": {"trainer_mode": "sync"}, "experiment_name": "exp", "n_gpus_per_node": 1, "nnodes": 1,
    },
    "data": {"train_batch_size": 4},
    "algorithm": {"adv_estimator": "grpo"},
    "critic": {"enable": None},
    "reward": {"reward_model": {"enable": False}},
    "rollway": {"dispatcher_url": "http://127.0.0.1:9000"},
    "actor_rollout_ref": {
        "model": {"path": "/models/m", "lora_rank": 0, "lora": {"rank": 0, "merge": False}, "lora_adapter_path": None},
        "actor": {"ppo_micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False},
        "rollout": {
            "name": "vllm", "n": 4, "temperature": 1.0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0,
            "calculate_log_probs": True, "prompt_length": 64, "response_length": 64,
            "logprobs_mode": "processed_logprobs", "log_prob_micro_batch_size_per_gpu": 4,
            "val_kwargs": {"n": 1, "temperature": 0, "top_p": 1.0, "top_k": -1},
            "agentcore": {"_target_": "x", "agent_runtime_arn": ARN, "s3_bucket": "bucket"},
        },
    },
}  # fmt: skip


def config(**changes: Any) -> dict[str, Any]:
    """verl's configuration as plain values; ``changes`` by dotted path with ``__`` for the dots."""
    made = copy.deepcopy(_CONFIG)
    for path, value in changes.items():
        *folders, name = path.split("__")
        at = made
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = value
    return made
