"""What a runtime receives and what an agent's container answers and saves.

The shapes are agentcore-rl-toolkit's (its ``app.py``), so that an agent written for it runs here and an image built
with it works with our dispatcher: payload fields at top level plus ``_rollout``; an immediate receipt; a result object
in S3.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollway_wire.ids import result_key

ROLLOUT_KEY = "_rollout"
RESERVED_RESULT_KEYS = ("status_code", "stop_reason", "input_id", "s3_bucket", "result_key", "payload")
"""Keys the shim writes into the saved result; an agent's own values for the last four are overwritten."""


class ReportTarget(BaseModel):
    """Where and how the shim pushes started / heartbeat / done. Absent for agents that should not push."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str
    """The dispatcher's report endpoint for this session; the shim POSTs a `Report` to it."""
    key: str
    """Bearer token that may report for this session and nothing else."""
    interval_s: float = Field(default=5.0, gt=0, le=300)
    """Seconds between heartbeats."""


class RolloutConfig(BaseModel):
    """The ``_rollout`` object. Unknown fields are kept: they are the agent's to read."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    exp_id: str = Field(min_length=1)
    input_id: str = Field(min_length=1)
    s3_bucket: str = Field(min_length=1)
    base_url: str | None = None
    model_id: str | None = None
    sampling_params: dict[str, Any] | None = None
    api_key: str | None = None
    report: ReportTarget | None = None

    def result_key(self, session_id: str) -> str:
        return result_key(self.exp_id, self.input_id, session_id)


class Receipt(BaseModel):
    """The immediate answer to an invocation."""

    model_config = ConfigDict(extra="ignore")

    status: Literal["processing"]
    s3_bucket: str | None = None
    result_key: str | None = None


class Report(BaseModel):
    """One push from the shim. Delivery is best effort: the result in S3 is the truth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_id: str
    event: Literal["started", "heartbeat", "done"]
    status_code: int | None = None
    """With ``done``: the saved result's status_code."""
    result_key: str | None = None
    """With ``done``: the key just written."""


class SavedResult(BaseModel):
    """The S3 object. Everything else the agent returned stays beside these keys."""

    model_config = ConfigDict(extra="allow")

    status_code: int
    stop_reason: str
    input_id: str
    s3_bucket: str
    result_key: str
    payload: dict[str, Any] | None = None
    rewards: Any = None
    traceback: str | None = None
