"""A batch as accepted: the request without its payloads, every default resolved. What the rest of the service reads."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from math import ceil
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.batch import (
    AgentCoreRuntime,
    BatchRequest,
    Capture,
    HttpRuntime,
    KubernetesRuntime,
    Limits,
    Policy,
    ProcessRuntime,
    RuntimeSpec,
)
from rollway_wire.problems import Forbidden, Unprocessable

OURS = frozenset({"exp_id", "input_id", "s3_bucket", "report", "model_id", "sampling_params"})
"""Fields of ``_rollout`` that the dispatcher writes."""
CAPTURED = frozenset({"base_url", "api_key"})
"""Likewise, when the gateway captures."""


class Order(BaseModel):
    """`BatchRequest` without groups. Frozen, persisted with the batch, read by every step of its rollouts."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    batch_id: str
    experiment_id: str
    runtime: RuntimeSpec
    model_id: str
    sampling_params: dict[str, Any]
    capture: Capture | None
    rollout: dict[str, Any]
    limits: Limits
    policy: Policy = Policy()
    require_rewards: bool
    s3_bucket: str

    @property
    def exp_id(self) -> str:
        """First part of every result's key; one prefix lists one batch."""
        return f"{self.experiment_id}/{self.batch_id}"


def batch_of(key: str) -> str | None:
    """The batch that an object's key would belong to as a result's, by `Order.exp_id` and `result_key`."""
    parts = key.split("/")
    return parts[-3] if len(parts) > 3 else None


def accept(request: BatchRequest, batch_id: str, settings: DispatcherSettings) -> Order:
    """The order for a request.

    Raises:
        Forbidden: the process runtime is not allowed here.
        Unprocessable: no bucket or gateway is known, or ``rollout`` holds a field that the dispatcher writes.
    """
    if isinstance(request.runtime, ProcessRuntime) and not settings.allow_process_runtime:
        raise Forbidden(
            "the process runtime is off: set ROLLWAY_DISPATCHER_ALLOW_PROCESS_RUNTIME=true where callers are trusted"
        )
    bucket = request.s3_bucket or settings.s3_bucket
    if bucket is None:
        raise Unprocessable("no bucket for results: send s3_bucket, or set ROLLWAY_DISPATCHER_S3_BUCKET")
    if request.capture is not None and settings.gateway_url is None:
        raise Unprocessable(
            "capture needs a gateway: set ROLLWAY_DISPATCHER_GATEWAY_URL, or send capture: null for agents that call "
            "rollout.base_url"
        )
    reserved = OURS | CAPTURED if request.capture is not None else OURS
    if taken := sorted(reserved & request.rollout.keys()):
        raise Unprocessable(f"rollout may not hold {', '.join(taken)}: the dispatcher writes them into _rollout")
    fields = request.model_dump(exclude={"groups", "s3_bucket"})
    return Order(batch_id=batch_id, s3_bucket=bucket, **fields)


def fingerprint(request: BatchRequest) -> str:
    """Hash of a request's meaning: equal for bodies that differ only in spacing, key order or spelled-out defaults."""
    canonical = orjson.dumps(request.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(canonical).hexdigest()


@dataclass(frozen=True, slots=True)
class Room:
    """What one runtime takes at once."""

    key: str
    """Batches with the same key share the room."""
    starting: int
    """Starts in flight. Small, so that a stop never queues behind a whole batch of starts for the shared rate."""
    alive: int | None
    """Sessions alive; None: unknown, the runtime refuses by itself."""


def room_of(spec: RuntimeSpec) -> Room:
    if isinstance(spec, AgentCoreRuntime):
        key = f"agentcore {spec.agent_runtime_arn} {spec.endpoint_url or ''}"
        return Room(key, max(1, ceil(spec.tps_limit)), None)
    if isinstance(spec, HttpRuntime):
        return Room(f"http {' '.join(sorted(spec.urls))}", 64, len(spec.urls) * spec.sessions_per_url)
    if isinstance(spec, KubernetesRuntime):
        return Room(f"kubernetes {spec.api_url or spec.context or ''} {spec.namespace}", 64, spec.max_pods)
    return Room("process", 2 * (os.cpu_count() or 1), None)
