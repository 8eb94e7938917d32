"""The trainer's command line and environment: verl's own ``main_ppo``, everything of ours by configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollway_local.demo_plan import Plan

_FOREIGN = ("AWS_", "RAY_", "VERL_", "VLLM_", "HYDRA_", "WANDB_", "CUDA_", "PYTHON")
"""A person's own settings of these must not reach the run."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What one run leaves in its folder."""

    folder: Path

    @property
    def batches(self) -> Path:
        """The driver's line per batch."""
        return self.folder / "batches.jsonl"

    @property
    def trainer(self) -> Path:
        """verl's metrics per step."""
        return self.folder / "trainer.jsonl"

    @property
    def weights(self) -> Path:
        """vLLM's line per weight update."""
        return self.folder / "weights.jsonl"

    @property
    def trajectories(self) -> Path:
        return self.folder / "trajectories"

    @property
    def trainer_log(self) -> Path:
        return self.folder / "trainer.log"

    @property
    def stack_log(self) -> Path:
        return self.folder / "stack.log"


def trainer_command(
    python: Path, plan: Plan, files: RunFiles, *, model: Path, data: Path, stack: Mapping[str, Any]
) -> list[str]:
    """``stack`` is stack.json. Keys are verl's; those under ``rollway`` and ``rollout.agentcore`` are the driver's."""
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    emulator = stack["emulator"]
    runtime = {
        "kind": "agentcore",
        "agent_runtime_arn": emulator["agent_runtime_arn"],
        "endpoint_url": emulator["endpoint_url"],
    }
    settings: dict[str, Any] = {
        "data.train_files": data / "train.parquet",
        "data.val_files": data / "val.parquet",
        "data.train_batch_size": plan.prompts,
        "data.max_prompt_length": plan.prompt_length,
        "data.max_response_length": plan.response_length,
        "data.dataloader_num_workers": 0,
        "data.seed": plan.seed,
        "actor_rollout_ref.model.path": model,
        f"{actor}.ppo_mini_batch_size": plan.prompts,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": plan.max_model_len,
        f"{actor}.optim.lr": plan.learning_rate,
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": bucket_megabytes(model),
        f"{rollout}.n": plan.rollouts,
        f"{rollout}.temperature": plan.temperature,
        f"{rollout}.max_model_len": plan.max_model_len,
        f"{rollout}.max_num_seqs": 2 * plan.agents_at_once,
        f"{rollout}.max_num_batched_tokens": 2 * plan.max_model_len,
        f"+{rollout}.engine_kwargs.vllm.enable_auto_tool_choice": True,
        f"+{rollout}.engine_kwargs.vllm.tool_call_parser": plan.tool_parser,
        f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes": kv_cache_bytes(
            model, plan.agents_at_once * plan.max_model_len
        ),
        f"{rollout}.agentcore.s3_bucket": stack["s3"]["bucket"],
        f"{rollout}.agentcore.max_rollout_time": 600,
        "rollway.dispatcher_url": stack["dispatcher"]["url"],
        "rollway.gateway_url": stack["gateway"]["admin_url"],
        "rollway.runtime": runtime,
        "rollway.max_tokens": plan.max_tokens,
        "rollway.max_concurrent": plan.agents_at_once,
        "rollway.metrics_path": files.batches,
        "rollway.trajectories_dir": files.trajectories,
        "trainer.project_name": "rollway",
        "trainer.experiment_name": "demo",
        "trainer.logger": ["console", "file"],
        "trainer.total_training_steps": plan.steps,
        "trainer.total_epochs": plan.steps,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": files.folder / "checkpoints",
    }
    module = [
        "-m",
        "verl.trainer.main_ppo",
        "--config-path=pkg://rollway_driver.verl.config",
        "--config-name=rollway_cpu",
    ]
    return [
        str(python),
        *module,
        f"hydra.run.dir={files.folder}/hydra",
        *(f"{k}={_hydra(v)}" for k, v in settings.items()),
        *plan.overrides,
    ]


def bucket_megabytes(model: Path) -> int:
    """Shared memory for sending weights: room for the largest tensor, which is the embedding, in float32."""
    text = _text_config(model)
    return max(128, int(text["vocab_size"] * text["hidden_size"] * 4) // 2**20 + 1)


def kv_cache_bytes(model: Path, tokens: int) -> int:
    """Room in float32 for ``tokens`` tokens of context, and a quarter more for unfilled blocks; at least 256 MiB."""
    text = _text_config(model)
    heads = text["num_attention_heads"]
    head_size = text.get("head_dim") or text["hidden_size"] // heads
    per_token = int(2 * text["num_hidden_layers"] * (text.get("num_key_value_heads") or heads) * head_size * 4)
    return max(256 * 2**20, tokens * per_token * 5 // 4)


def _text_config(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    return {**config, **config.get("text_config", {})}


def _hydra(value: Any) -> str:
    """A value in Hydra's override grammar, strings quoted."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_hydra(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_hydra(v) for v in value) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def stack_keys(stack: Mapping[str, Any]) -> dict[str, str]:
    """The services' keys, as the driver reads them; verl prints its configuration, so they are not in that."""
    return {
        "ROLLWAY_GATEWAY_ADMIN_KEY": stack["gateway"]["admin_key"],
        "ROLLWAY_DISPATCHER_API_KEY": stack["dispatcher"]["api_key"],
    }


def trainer_environment(plan: Plan, files: RunFiles) -> dict[str, str]:
    """The person's environment, with what steers verl, Ray and vLLM replaced by what steers them here."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost")))
    return {
        **kept,
        "NO_PROXY": local,
        "no_proxy": local,
        "VERL_USE_EXTERNAL_MODULES": "rollway_driver.cpu.plugin",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_FILE_LOGGER_PATH": str(files.trainer),
        "ROLLWAY_WEIGHT_LOG": str(files.weights),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": str(plan.threads),
        "MALLOC_ARENA_MAX": "2",  # or each of Ray's many threads keeps freed memory of its own
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
