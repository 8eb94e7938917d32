"""What the driver reads from verl's own keys, and what it refuses because it would train on wrong numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollway_driver.verl.sources import SettingsError, select

ROLLOUT = "actor_rollout_ref.rollout"
REPLAY = f"{ROLLOUT}.enable_rollout_routing_replay"
_REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The longest row that the trainer's memory is planned for, in tokens."""

    prompt: int
    response: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    model_path: str
    n: int
    val_n: int
    temperature: float
    val_temperature: float
    val_top_p: float
    val_top_k: int
    budget: Budget
    group_relative: bool
    """The advantage estimator is verl's ``grpo``, the only one that understands several rows per session."""
    train_batch_size: int
    devices: int
    critic: bool
    routing_replay: bool
    """The servers return routed experts, and verl replays them (its mode R3): every row must have its own."""


def read_facts(config: Mapping[str, Any]) -> TrainerFacts:
    """Read and check verl's configuration.

    Raises:
        SettingsError: a combination the driver cannot serve exactly; the message names the key and says why.
    """
    _refuse(config)
    return TrainerFacts(
        model_path=_need(config, "actor_rollout_ref.model.path"),
        n=int(_need(config, f"{ROLLOUT}.n")),
        val_n=int(_need(config, f"{ROLLOUT}.val_kwargs.n")),
        temperature=float(_need(config, f"{ROLLOUT}.temperature")),
        val_temperature=float(_need(config, f"{ROLLOUT}.val_kwargs.temperature")),
        val_top_p=float(_need(config, f"{ROLLOUT}.val_kwargs.top_p")),
        val_top_k=int(_need(config, f"{ROLLOUT}.val_kwargs.top_k")),
        budget=Budget(
            prompt=int(_need(config, f"{ROLLOUT}.prompt_length")),
            response=int(_need(config, f"{ROLLOUT}.response_length")),
        ),
        group_relative=str(select(config, "algorithm.adv_estimator")) == "grpo",
        train_batch_size=int(_need(config, "data.train_batch_size")),
        devices=int(_need(config, "trainer.n_gpus_per_node")) * int(_need(config, "trainer.nnodes")),
        critic=bool(select(config, "critic.enable")) or select(config, "algorithm.adv_estimator") == "gae",
        routing_replay=bool(select(config, REPLAY)),
    )


def _need(config: Mapping[str, Any], path: str) -> Any:
    value = select(config, path, _REQUIRED)
    if value is _REQUIRED or value is None:
        raise SettingsError(f"{path} is not set")
    return value


def _refuse(config: Mapping[str, Any]) -> None:
    for path, accepts, why in _RULES:
        value = select(config, path)
        if not accepts(value):
            raise SettingsError(f"{path}={value!r}: {why}")
    _refuse_adapters(config)
    _refuse_log_prob_mode(config)
    _refuse_replay_mode(config)


_SUPPORT = "the engine's log-probs would be over a cut support, the trainer's over the full one; set "
_RULES: tuple[tuple[str, Any, str], ...] = (
    ("trainer.use_v1", lambda v: v is not False, "the driver fills the v1 trainer's manager; set trainer.use_v1=True"),
    (
        "trainer.v1.trainer_mode",
        lambda v: v in (None, "sync"),
        "weights would change while agents are calling the servers, and verl resumes such calls on its Ray path alone; "
        "set trainer.v1.trainer_mode=sync",
    ),
    (
        f"{ROLLOUT}.name",
        lambda v: v == "vllm",
        "the gateway reads token ids as vLLM reports them; set rollout.name=vllm",
    ),
    (f"{ROLLOUT}.calculate_log_probs", lambda v: v is True, "the rows carry log-probs; set calculate_log_probs=True"),
    (f"{ROLLOUT}.top_p", lambda v: v in (None, 1), _SUPPORT + "top_p=1"),
    (f"{ROLLOUT}.top_k", lambda v: v in (None, -1), _SUPPORT + "top_k=-1"),
    (f"{ROLLOUT}.repetition_penalty", lambda v: v in (None, 1), "the trainer knows no penalty; set it to 1.0"),
    (
        f"{ROLLOUT}.temperature",
        lambda v: v is not None and v > 0,
        "a greedy policy has nothing to explore; set it above 0",
    ),
    (
        "reward.reward_model.enable",
        lambda v: not v,
        "the agent returns the reward and verl's model would replace it; set reward.reward_model.enable=False",
    ),
    ("distillation.enabled", lambda v: not v, "rows carry no teacher log-probs; set distillation.enabled=False"),
)


def _refuse_adapters(config: Mapping[str, Any]) -> None:
    model = "actor_rollout_ref.model"
    rank = max(int(select(config, f"{model}.lora_rank") or 0), int(select(config, f"{model}.lora.rank") or 0))
    adapter = rank > 0 or select(config, f"{model}.lora_adapter_path") is not None
    if adapter and not select(config, f"{model}.lora.merge"):
        raise SettingsError(
            f"{model}.lora: verl's adapter has no name on the HTTP routes, agents would get the base model; "
            f"set {model}.lora.merge=True"
        )


def _refuse_log_prob_mode(config: Mapping[str, Any]) -> None:
    own = select(config, f"{ROLLOUT}.engine_kwargs.vllm.logprobs_mode")
    mode = own or select(config, f"{ROLLOUT}.logprobs_mode")
    if mode not in (None, "processed_logprobs") and float(select(config, f"{ROLLOUT}.temperature") or 1) != 1.0:
        raise SettingsError(
            f"{ROLLOUT}.logprobs_mode={mode!r}: at a temperature other than 1 raw log-probs are not the sampled "
            "distribution's; set processed_logprobs"
        )


def _refuse_replay_mode(config: Mapping[str, Any]) -> None:
    """verl's engines fail on a batch without routed experts in mode R3, and its mode R2 records its own over ours."""
    strategy = select(config, "actor_rollout_ref.actor.strategy")
    mode_key = f"actor_rollout_ref.actor.{strategy}.router_replay.mode"
    mode, replay = select(config, mode_key), bool(select(config, REPLAY))
    if mode == "R3" and not replay:
        raise SettingsError(f"{mode_key}=R3: the rollouts must bring routed experts; set {REPLAY}=True")
    if mode == "R2" and replay:
        raise SettingsError(f"{mode_key}=R2: verl records the routing itself; set {REPLAY}=False, or the mode R3")
