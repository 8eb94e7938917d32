"""Runs in the trainer's environment: verl's own actor, on the rows of several gateways in turn.

    python actor.py ROWS.json --model FOLDER --repeats N

ROWS.json holds ``{name: [[token ids, loss mask], ...]}``. Each repeat gives every name's rows to one update, in turn,
the next repeat in the opposite order, so that whatever the machine does meets all alike. Prints a JSON line per update.
The worker, its configuration and its loss are those that verl's trainer starts on a machine without an accelerator
(`rollway_driver.verl.config`, ``rollway_cpu``), in this process instead of one of Ray's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

Row = tuple[list[int], list[int]]
"""Token ids, and 1 where the token is trained."""
MICRO_BATCH_TOKENS = 2048
"""Of one forward and backward pass; more rows in it cost less each."""


def environment() -> None:
    """What Ray and the trainer's command line set for a worker; before torch is imported. One thread: threads that wait
    for one another burn CPU on a busy machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ.update(
        {
            "VERL_USE_EXTERNAL_MODULES": "rollway_driver.cpu.plugin",
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    )


def started(model: Path) -> Any:
    """verl's actor with its optimizer."""
    import verl  # noqa: F401  (loads the plugin)
    from hydra import compose, initialize_config_module
    from verl.workers.engine_workers import ActorRolloutRefWorker

    chosen = [
        f"actor_rollout_ref.model.path={model}",
        "data.train_batch_size=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={MICRO_BATCH_TOKENS}",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={MICRO_BATCH_TOKENS}",
        "actor_rollout_ref.actor.optim.total_training_steps=1000",
    ]
    with initialize_config_module("rollway_driver.verl.config", version_base=None):
        config = compose("rollway_cpu", overrides=chosen)
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def batch(rows: list[Row]) -> Any:
    """Rows as verl's trainer hands them to an actor: jagged tensors, without padding."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    columns: dict[str, list[torch.Tensor]] = {}
    for ids, mask in rows:
        first = mask.index(1)
        end = len(mask) - mask[::-1].index(1)
        responses = torch.tensor(ids[first:end])
        row = {
            "prompts": torch.tensor(ids[:first]),
            "responses": responses,
            "input_ids": torch.tensor(ids[:end]),
            "position_ids": torch.arange(end),
            "response_mask": torch.tensor(mask[first:end]),
            "loss_mask": torch.tensor(mask[first:end]),
            "old_log_probs": torch.full((len(responses),), -1.0),
            "advantages": torch.ones(len(responses)),
        }
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
    made: TensorDict = tu.get_tensordict(
        {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in columns.items()}
    )
    return made


def update(worker: Any, rows: list[Row]) -> float:
    """CPU seconds of one optimizer step on all rows."""
    from verl.utils import tensordict_utils as tu

    data = batch(rows)
    tu.assign_non_tensor(
        data, calculate_entropy=False, global_batch_size=len(rows), mini_batch_size=len(rows), epochs=1, seed=1,
        dataloader_kwargs={"shuffle": False}, temperature=1.0, distillation_use_topk=False, distillation_only=False,
    )  # fmt: skip
    begin = time.process_time()
    worker.update_actor(data)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    environment()
    given: dict[str, list[Row]] = json.loads(chosen.rows.read_text())
    worker = started(chosen.model)
    for rows in given.values():
        update(worker, rows[:1])  # the first update makes the optimizer's state
    names = list(given)
    for repeat in range(chosen.repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            seconds = update(worker, given[name])
            print(json.dumps({"name": name, "repeat": repeat, "cpu_s": seconds}), flush=True)


if __name__ == "__main__":
    main()
