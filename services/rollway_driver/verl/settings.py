"""What the driver needs to know beyond verl's own keys: one frozen model, refused whole when a part is wrong."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rollway_driver.client.gateways import split_urls
from rollway_driver.verl.sources import SettingsError, gather, select
from rollway_wire.batch import AgentCoreRuntime, Policy, RuntimeSpec
from rollway_wire.gateway import POOL_PATTERN
from rollway_wire.ids import check_segment

DEFAULT_ROLLOUT_TIMEOUT_S = 1800.0
"""agentcore-rl-toolkit's own default for max_rollout_time."""


class DriverSettings(BaseModel):
    """The keys under ``rollway``; those the toolkit and rllm know too are merged into the same fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dispatcher_url: str
    gateway_url: str
    """The gateway's admin address. Several, as a list or comma-separated: those that the dispatcher spreads sessions
    over, all of them. Default: this machine, at the toolkit's ``gateway_port``."""
    pool: str = Field(pattern=POOL_PATTERN)
    """The gateway pool of this run's inference servers. Default: a new name per run, so that runs never mix."""
    tokenizer: str | None = None
    """Folder on the gateway's machine with the model's tokenizer and chat template. Default: where the server says."""
    experiment_id: str
    """First part of the S3 prefix. Default: trainer.experiment_name and a part of its own per run."""
    runtime: RuntimeSpec
    """Where agents run. Default: AgentCore at ``agent_runtime_arn`` with ``tps_limit``."""
    s3_bucket: str | None = None
    rollout_timeout_s: float = Field(default=DEFAULT_ROLLOUT_TIMEOUT_S, gt=0, le=8 * 3600)
    batch_timeout_s: float | None = Field(default=None, gt=0)
    """After this many seconds a batch is cancelled and its open groups fail. Default: none; rollouts have their own."""
    max_concurrent: int | None = Field(default=None, ge=1)
    max_attempts: int = Field(default=2, ge=1, le=10)
    policy: Policy = Field(default_factory=Policy)
    """Which sessions a training batch pays for (extras, hedging, a deadline); validation runs every rollout once."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Of one model call. Default: rollout.response_length."""
    reward: Literal["last", "sum"] = "last"
    """How a list of rewards becomes one score: its last entry (as the toolkit and rllm do), or the sum."""
    min_group_survivors: int = Field(default=2, ge=1)
    """A training group with fewer usable rollouts is dropped whole."""
    max_refills_per_step: int = Field(default=64, ge=0)
    """Prompts verl may ask for again in one step before the run stops: without an end it would ask forever."""
    drain_timeout_s: float = Field(default=10.0, ge=0, le=3600)
    """How long calls still in flight may take once every rollout of a batch is in."""
    ppo_mini_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps per batch, whatever number of rows the sessions gave. None: verl's own rule, where more rows are
    more steps."""
    metrics_path: Path | None = None
    """One JSON line per batch is appended here."""
    trajectories_dir: Path | None = None
    """Each group's rollouts are kept here as packed files."""
    max_pool_connections: int | None = Field(default=None, ge=1)
    """The toolkit's: connections to AWS. They are the dispatcher's here, which sizes them itself."""
    gateway_store: Literal["memory", "sqlite"] | None = None
    """The toolkit's: where its gateway keeps traces. Ours is started, and told, on its own."""
    gateway_cumulative_token_mode: bool = False
    gateway_renderer_model_family: str = "auto"

    @field_validator("dispatcher_url")
    @classmethod
    def _is_url(cls, v: str) -> str:
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", v):
            raise ValueError(f"must be an http:// or https:// URL, got {v!r}")
        return v.rstrip("/")

    @field_validator("gateway_url", mode="before")
    @classmethod
    def _are_urls(cls, v: Any) -> str:
        if not isinstance(v, str | list | tuple):
            raise ValueError(f"must be a URL or a list of URLs, got {v!r}")
        return ",".join(cls._is_url(url) for url in split_urls(v if isinstance(v, str) else map(str, v)))

    @property
    def gateway_urls(self) -> list[str]:
        return self.gateway_url.split(",")

    @field_validator("experiment_id")
    @classmethod
    def _is_segment(cls, v: str) -> str:
        return check_segment(v, "experiment_id")

    @model_validator(mode="after")
    def _paths_are_absolute(self) -> Self:
        for name in ("metrics_path", "trajectories_dir"):
            path = getattr(self, name)
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name} must be absolute: the trainer's task runs in a folder of Ray's, got {path}")
        return self


def read_settings(config: Mapping[str, Any]) -> DriverSettings:
    """Merge all sources (see `sources`) and fill the defaults.

    Raises:
        SettingsError: a value is missing, unknown, wrong, or said twice differently.
    """
    said = gather(config)
    run = _run_name(config)
    arn, tps = said.pop("agent_runtime_arn", None), said.pop("tps_limit", None)
    said["runtime"] = _runtime(said.get("runtime"), arn, tps)
    port = said.pop("gateway_port", 9090)
    said.setdefault("gateway_url", f"http://127.0.0.1:{port}")
    said.setdefault("pool", run[:64])
    said.setdefault("experiment_id", run)
    if "dispatcher_url" not in said:
        raise SettingsError("rollway.dispatcher_url is not set: give the dispatcher's base URL")
    try:
        return DriverSettings(**said)
    except ValidationError as e:
        wrong = "; ".join(f"rollway.{'.'.join(map(str, i['loc']))}: {i['msg']}" for i in e.errors())
        raise SettingsError(wrong) from e


def _runtime(runtime: Any, arn: str | None, tps: float | None) -> Any:
    if runtime is None:
        if arn is None:
            raise SettingsError(
                "no runtime: set actor_rollout_ref.rollout.agentcore.agent_runtime_arn, "
                "rllm.remote_runtime.agentcore.agent_runtime_arn, or rollway.runtime"
            )
        try:
            return AgentCoreRuntime.model_validate(
                {"agent_runtime_arn": arn} | ({} if tps is None else {"tps_limit": tps})
            )
        except ValidationError as e:
            raise SettingsError(f"agent_runtime_arn={arn!r}, reqs_per_sec={tps!r}: {e.errors()[0]['msg']}") from e
    if arn is not None and (not isinstance(runtime, Mapping) or runtime.get("agent_runtime_arn") != arn):
        raise SettingsError(f"rollway.runtime and agent_runtime_arn={arn!r} name different runtimes: set one of them")
    return runtime


def _run_name(config: Mapping[str, Any]) -> str:
    """A name that no other run has, readable and fit for a pool and an S3 prefix."""
    name = (
        re.sub(r"[^A-Za-z0-9.-]+", "-", str(select(config, "trainer.experiment_name") or "verl")).strip("-.") or "verl"
    )
    return f"{name[:40]}-{uuid.uuid4().hex[:12]}"
