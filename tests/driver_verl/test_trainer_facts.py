"""verl's own keys: what the driver reads from them, and each combination it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from rollway_driver.verl.sampling import sampling_params
from rollway_driver.verl.sources import SettingsError
from rollway_driver.verl.trainer_facts import Budget, read_facts
from tests.driver_verl.made import config

R = "actor_rollout_ref__rollout"
M = "actor_rollout_ref__model"


def test_the_facts_are_verls() -> None:
    facts = read_facts(config(**{f"{R}__val_kwargs": {"n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5}}))
    assert (facts.model_path, facts.n, facts.val_n, facts.train_batch_size) == ("/models/m", 4, 2, 4)
    assert facts.budget == Budget(prompt=64, response=64)
    assert facts.group_relative and not facts.critic


def test_training_pins_what_would_move_the_distribution_and_validation_does_not() -> None:
    facts = read_facts(config(**{f"{R}__val_kwargs": {"n": 1, "temperature": 0, "top_p": 0.9, "top_k": 5}}))
    train = sampling_params(facts, None, validate=False)
    assert (train["temperature"], train["top_p"], train["max_tokens"]) == (1.0, 1.0, 64)
    assert train["extra_body"] == {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    val = sampling_params(facts, 12, validate=True)
    assert (val["temperature"], val["top_p"], val["max_tokens"], val["extra_body"]["top_k"]) == (0, 0.9, 12, 5)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"trainer__use_v1": False}, "trainer.use_v1=False"),
    ({"trainer__v1__trainer_mode": "colocate_async"}, "set trainer.v1.trainer_mode=sync"),
    ({"trainer__v1__trainer_mode": "separate_async"}, "set trainer.v1.trainer_mode=sync"),
    ({f"{R}__name": "sglang"}, "set rollout.name=vllm"),
    ({f"{R}__calculate_log_probs": False}, "set calculate_log_probs=True"),
    ({f"{R}__top_p": 0.95}, "set top_p=1"),
    ({f"{R}__top_k": 20}, "set top_k=-1"),
    ({f"{R}__repetition_penalty": 1.1}, "set it to 1.0"),
    ({f"{R}__temperature": 0}, "set it above 0"),
    (
        {
            "actor_rollout_ref__actor__strategy": "megatron",
            "actor_rollout_ref__actor__megatron": {"router_replay": {"mode": "R3"}},
        },
        "set actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
    ),
    (
        {
            "actor_rollout_ref__actor__strategy": "veomni",
            f"{R}__enable_rollout_routing_replay": True,
            "actor_rollout_ref__actor__veomni": {"router_replay": {"mode": "R2"}},
        },
        "set actor_rollout_ref.rollout.enable_rollout_routing_replay=False",
    ),
    ({"reward__reward_model__enable": True}, "set reward.reward_model.enable=False"),
    ({"distillation__enabled": True}, "distillation.enabled"),
    ({f"{M}__lora_rank": 8}, "set actor_rollout_ref.model.lora.merge=True"),
    ({f"{M}__lora": {"rank": 8, "merge": False}}, "set actor_rollout_ref.model.lora.merge=True"),
    ({f"{M}__lora_adapter_path": "/a"}, "set actor_rollout_ref.model.lora.merge=True"),
    ({f"{R}__temperature": 0.7, f"{R}__logprobs_mode": "raw_logprobs"}, "set processed_logprobs"),
    (
        {f"{R}__temperature": 0.7, f"{R}__engine_kwargs": {"vllm": {"logprobs_mode": "raw_logprobs"}}},
        "set processed_logprobs",
    ),
    ({f"{R}__n": None}, "actor_rollout_ref.rollout.n is not set"),
    ({"data__train_batch_size": None}, "data.train_batch_size is not set"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=[f"{said[:34]}-{i}" for i, (_, said) in enumerate(REFUSED)])
def test_what_would_train_on_wrong_numbers_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_facts(config(**changes))


@pytest.mark.parametrize("strategy", ["megatron", "veomni"])
def test_routing_is_replayed_where_verl_is_told_to(strategy: str) -> None:
    mode = {f"actor_rollout_ref__actor__{strategy}": {"router_replay": {"mode": "R3"}}}
    on = {f"{R}__enable_rollout_routing_replay": True, "actor_rollout_ref__actor__strategy": strategy, **mode}
    assert read_facts(config(**on)).routing_replay
    assert not read_facts(config()).routing_replay


def test_merged_adapters_and_raw_log_probs_at_temperature_one_are_fine() -> None:
    read_facts(config(**{f"{M}__lora": {"rank": 8, "merge": True}}))
    read_facts(config(**{f"{R}__logprobs_mode": "raw_logprobs"}))
    read_facts(config(algorithm__adv_estimator="gae"))
