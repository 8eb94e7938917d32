"""A `RolloutClient`'s settings, and the `BatchRequest` they make with a payload and its overrides. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollway_wire.batch import BatchRequest, Capture, Group, Limits, RuntimeSpec

MOST_ATTEMPTS = 10
"""The bound of `Limits.max_attempts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDefaults:
    """Raises ValueError for ``capture=True`` together with a base URL: agents call the one or the other."""

    exp_id: str
    runtime: RuntimeSpec
    s3_bucket: str | None
    base_url: str | None
    model_id: str | None
    capture: bool | None
    """None: captured unless a base URL is given."""
    capture_pool: str
    max_attempts: int
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``_rollout``."""

    def __post_init__(self) -> None:
        self.request([Group(group_id="probe", payload={})], timeout_s=1.0)

    def request(
        self,
        groups: list[Group],
        *,
        timeout_s: float,
        max_concurrent: int | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> BatchRequest:
        """The batch of these groups. ``overrides`` win over the client's own settings, key by key.

        Raises:
            ValueError: a setting that no batch can have; pydantic's names it.
        """
        given = {
            "exp_id": self.exp_id,
            "s3_bucket": self.s3_bucket,
            "base_url": self.base_url,
            "model_id": self.model_id,
            **self.config,
            **(overrides or {}),
        }
        known = {name: given.pop(name) for name in ("exp_id", "s3_bucket", "base_url", "model_id")}
        if self.capture and known["base_url"]:
            raise ValueError("base_url and capture=True exclude each other: a captured agent calls the gateway's URL")
        captured = not known["base_url"] if self.capture is None else self.capture
        return BatchRequest(
            experiment_id=known["exp_id"],
            groups=groups,
            runtime=self.runtime,
            model_id=known["model_id"] or "",
            sampling_params=given.pop("sampling_params", None) or {},
            capture=Capture(pool=self.capture_pool) if captured else None,
            rollout=given | ({"base_url": known["base_url"]} if known["base_url"] else {}),
            limits=Limits(rollout_timeout_s=timeout_s, max_concurrent=max_concurrent, max_attempts=self.max_attempts),
            require_rewards=False,
            s3_bucket=known["s3_bucket"],
        )
