"""verl's configuration classes with the keys that agentcore-rl-toolkit adds to them.

verl turns ``actor_rollout_ref.rollout`` and ``.actor`` into dataclasses by their ``_target_`` and refuses what those do
not declare; ``config/rollway_base.yaml`` points ``_target_`` here. `rollway_driver.verl.sources` reads the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verl.base_config import BaseConfig
from verl.workers.config.actor import FSDPActorConfig, McoreActorConfig
from verl.workers.config.rollout import RolloutConfig


@dataclass
class AgentCoreKeys(BaseConfig):
    """``actor_rollout_ref.rollout.agentcore``. None: not said."""

    agent_runtime_arn: str | None = None
    s3_bucket: str | None = None
    reqs_per_sec: float | None = None
    max_pool_connections: int | None = None
    max_rollout_time: float | None = None
    gateway_port: int | None = None
    gateway_store: str | None = None
    gateway_cumulative_token_mode: bool | None = None
    gateway_renderer_model_family: str | None = None


@dataclass
class RemoteRolloutConfig(RolloutConfig):
    agentcore: AgentCoreKeys = field(default_factory=AgentCoreKeys)


@dataclass
class RemoteFSDPActorConfig(FSDPActorConfig):
    ppo_mini_steps: int | None = None


@dataclass
class RemoteMcoreActorConfig(McoreActorConfig):
    ppo_mini_steps: int | None = None
