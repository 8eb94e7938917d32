"""How large a mini-batch must be for a wanted number of optimizer steps. Pure.

verl's mini-batch is ``ppo_mini_batch_size * rollout.n`` rows, whatever number of rows a batch has: sessions that give
several rows then silently add optimizer steps. ``ppo_mini_steps`` fixes the number of steps instead, as in
agentcore-rl-toolkit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rollway_driver.verl.sources import select

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def row_multiple(config: Mapping[str, Any], devices: int) -> int:
    """What a mini-batch's row count must divide by: the devices, and without dynamic batches their micro-batches."""
    sizes = [1]
    if not select(config, f"{_ACTOR}.use_dynamic_bsz"):
        sizes.append(int(select(config, f"{_ACTOR}.ppo_micro_batch_size_per_gpu") or 1))
    if not select(config, f"{_ROLLOUT}.log_prob_use_dynamic_bsz"):
        sizes.append(int(select(config, f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu") or 1))
    return devices * math.lcm(*sizes)


def mini_batch_prompts(rows: int, steps: int, n: int, multiple: int) -> int:
    """The ``ppo_mini_batch_size`` (prompts of ``n`` rows) that turns ``rows`` into at most ``steps`` optimizer steps.

    verl pads the batch with rows that train nothing up to a whole number of mini-batches. Fewer than ``steps`` come out
    only when there are too few rows to share.
    """
    unit = multiple // math.gcd(multiple, n)
    prompts = math.ceil(max(rows, 1) / (steps * n))
    return math.ceil(prompts / unit) * unit
