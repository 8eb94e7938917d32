"""The dispatcher's API (`/v1/batches`): a batch in, results out. See docs/architecture.md."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollway_wire.failures import Failure, FailureType
from rollway_wire.gateway import DEFAULT_POOL, POOL_PATTERN
from rollway_wire.ids import check_segment
from rollway_wire.rollout import ROLLOUT_KEY

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class AgentCoreRuntime(_Frozen):
    """AWS Bedrock AgentCore, or anything that speaks its API at ``endpoint_url``."""

    kind: Literal["agentcore"] = "agentcore"
    agent_runtime_arn: str = Field(pattern=r"^arn:[^:]+:bedrock-agentcore:[^:]+:[^:]*:runtime/.+$")
    """The region is taken from it."""
    qualifier: str | None = None
    endpoint_url: HttpUrl | None = None
    """None: the SDK's own resolution (AWS_ENDPOINT_URL_BEDROCK_AGENTCORE, else the region's endpoint)."""
    tps_limit: float = Field(default=25.0, gt=0)
    """Calls a second that invoke and stop share, per runtime ARN."""


class HttpRuntime(_Frozen):
    """Agent containers that already run: each URL serves /invocations and /ping."""

    kind: Literal["http"] = "http"
    urls: list[HttpUrl] = Field(min_length=1)
    sessions_per_url: int = Field(default=1, ge=1)
    """How many rollouts one container runs at once."""


class ProcessLimits(_Frozen):
    """Of each process of an agent, by the kernel (setrlimit(2)); None: as the dispatcher's own."""

    memory_bytes: int | None = Field(default=None, ge=2**20)
    """Address space; an allocation beyond it fails."""
    cpu_s: int | None = Field(default=None, ge=1)
    """CPU time; beyond it the process is killed."""
    open_files: int | None = Field(default=None, ge=16)


class ProcessRuntime(_Frozen):
    """A local process per session. Refused unless the dispatcher's settings allow it."""

    kind: Literal["process"] = "process"
    command: list[str] = Field(min_length=1)
    """argv; ``{port}`` is replaced by the port the agent must serve on (also in $PORT)."""
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    limits: ProcessLimits = Field(default_factory=ProcessLimits)
    start_timeout_s: float = Field(default=60.0, gt=0)


class KubernetesRuntime(_Frozen):
    """A Kubernetes Job per session; the dispatcher must reach pods by their IP."""

    kind: Literal["kubernetes"] = "kubernetes"
    image: str = Field(min_length=1)
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    port: int = Field(default=8080, ge=1, le=65535)
    """Where the agent serves /invocations and /ping; also in $PORT."""
    command: list[str] | None = None
    """None: the image's own."""
    env: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, dict[str, str]] = Field(default_factory=dict)
    """As in a container: ``{"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}``."""
    service_account: str | None = None
    """Of the pod: how agents get their rights on S3."""
    pod_spec: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the pod's spec (nodeSelector, tolerations, volumes, imagePullSecrets), taken as they are."""
    api_url: HttpUrl | None = None
    """None: the cluster the dispatcher runs in, else the kubeconfig's ``context``."""
    context: str | None = None
    start_timeout_s: float = Field(default=300.0, gt=0)
    """From the Job's creation, image pull included, to the agent's first answer to /ping."""
    stop_grace_s: int = Field(default=5, ge=0)
    max_pods: int | None = Field(default=None, ge=1)
    """Sessions alive at once; None: the namespace's quota decides."""


RuntimeSpec = Annotated[
    AgentCoreRuntime | HttpRuntime | ProcessRuntime | KubernetesRuntime, Field(discriminator="kind")
]


class Group(_Frozen):
    """One input and how many rollouts of it."""

    group_id: str
    """Unique in the batch; the ``input_id`` in S3."""
    payload: dict[str, Any]
    """The dataset row's fields, handed to the agent at top level."""
    n: int = Field(default=1, ge=1, le=4096)

    @field_validator("group_id")
    @classmethod
    def _segment(cls, v: str) -> str:
        return check_segment(v, "group_id")

    @field_validator("payload")
    @classmethod
    def _no_reserved(cls, v: dict[str, Any]) -> dict[str, Any]:
        if ROLLOUT_KEY in v:
            raise ValueError(f"payload may not hold {ROLLOUT_KEY!r}: the dispatcher writes it")
        return v


class Capture(_Frozen):
    """Where the agents' model calls go and are recorded."""

    pool: str = Field(default=DEFAULT_POOL, pattern=POOL_PATTERN)
    """The gateway pool whose workers serve this batch."""
    require_complete: bool = True
    """A session whose tokens are not whole is a failure. False for evaluation on servers that give no token ids."""


class Limits(_Frozen):
    rollout_timeout_s: float = Field(default=900.0, gt=0, le=8 * 3600)
    """From the start of an attempt to its result."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Rollouts of this batch alive at once; None: the dispatcher's own limit."""
    max_attempts: int = Field(default=2, ge=1, le=10)
    """Attempts per rollout for failures that another attempt can mend."""


class Policy(_Frozen):
    """Which sessions a batch pays for. By default every rollout runs once, in order, but on inputs that kill agents."""

    admission: Literal["stream", "gang"] = "stream"
    """stream: groups in order, using all the room there is. gang: a group starts only when all of it fits at once, so
    that its rollouts run side by side under one policy version; some room stays empty meanwhile."""
    extra: int = Field(default=0, ge=0, le=64)
    """Rollouts per group beyond its ``n``. A group is decided when ``n`` have succeeded; what is left of it is then
    cancelled as surplus. Each has a result of its own, indexes ``n`` to ``n + extra - 1``."""
    extra_start: Literal["with_group", "straggler"] = "with_group"
    """with_group: over-sampling, extras start with their group. straggler: hedging, extras are held back until their
    group cannot reach ``n`` without one, or until the batch waits for nothing but one rollout, which has run
    ``HEDGE_FACTOR`` times as long as the batch's median."""
    quarantine_after: int | None = Field(default=4, ge=1)
    """An input on which so many attempts have died or run out of time, and none has succeeded, is quarantined: what is
    left of its group is cancelled, so that it kills no further container. None: never."""
    deadline_s: float | None = Field(default=None, gt=0)
    """From the batch's arrival. What still runs then fails as ``timed_out`` with the partial trajectory it has, what
    has not started is cancelled, and nothing is tried again. None: no deadline."""


HEDGE_FACTOR = 1.5


class Webhook(_Frozen):
    """An address that is told when something has finished: a POST, repeated until it is answered 2xx, signed as
    Standard Webhooks has it. 410 ends it. An event may come twice, with the same ``webhook-id``; a batch's come in
    order."""

    url: str = Field(max_length=2000)
    events: list[Literal["batch.finished", "rollout.finished"]] = Field(default=["batch.finished"], min_length=1)
    """``rollout.finished``: each result, without its tokens."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, v: str) -> str:
        parts = urlsplit(v)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ValueError("must be an http:// or https:// URL with a host and without a user")
        _ = parts.port  # raises ValueError for one that is none
        return v


class WebhookStatus(_Frozen):
    """How far a batch's webhook is."""

    state: Literal["open", "done", "given_up"]
    delivered: int
    """Results told."""
    attempt: int
    """Failed tries of the next call."""
    last_error: str | None


class BatchRequest(_Frozen):
    """POST /v1/batches. Send an ``Idempotency-Key`` header: the same key and body give the same batch back."""

    experiment_id: str = "default"
    """First part of the S3 prefix."""
    groups: list[Group] = Field(min_length=1)
    runtime: RuntimeSpec
    model_id: str = ""
    """Sent to agents as ``_rollout.model_id``."""
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    """Sent to agents and enforced at the gateway."""
    capture: Capture | None = Field(default_factory=Capture)
    """None: no gateway; agents call ``rollout.base_url`` and no trajectory comes back."""
    rollout: dict[str, Any] = Field(default_factory=dict)
    """Further fields for ``_rollout``, handed through as they are."""
    limits: Limits = Field(default_factory=Limits)
    policy: Policy = Field(default_factory=Policy)
    require_rewards: bool = True
    """A result without usable ``rewards`` is a contract error; False for evaluation that scores elsewhere."""
    s3_bucket: str | None = None
    """None: the dispatcher's own."""
    webhook: Webhook | None = None

    @field_validator("experiment_id")
    @classmethod
    def _segment(cls, v: str) -> str:
        return check_segment(v, "experiment_id")

    @model_validator(mode="after")
    def _unique_groups(self) -> BatchRequest:
        ids = [g.group_id for g in self.groups]
        if len(set(ids)) != len(ids):
            raise ValueError("group_id must be unique within a batch")
        return self


class RolloutState(StrEnum):
    """A rollout's life. Terminal states are SUCCEEDED, FAILED and CANCELLED."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    COLLECTING = "collecting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.CANCELLED})


class BatchState(StrEnum):
    RUNNING = "running"
    CANCELLING = "cancelling"
    FINISHED = "finished"


class BatchStatus(_Frozen):
    """GET /v1/batches/{batch_id}."""

    batch_id: str
    experiment_id: str
    state: BatchState
    created_at: float
    finished_at: float | None
    total: int
    counts: dict[RolloutState, int]
    failures: dict[str, int]
    """Failed rollouts by failure type."""
    contract_error: str | None = None
    """Why the batch was failed as a whole."""
    webhook: WebhookStatus | None = None
    """None: it has none."""


class RolloutView(_Frozen):
    """One rollout as it stands. GET /v1/batches/{batch_id}/rollouts."""

    rollout_id: str
    """``{batch_id}/{group_id}/{index}``."""
    batch_id: str
    group_id: str
    index: int
    """0 to n-1 within the group."""
    state: RolloutState
    attempt: int
    """1 for the first."""
    session_id: str | None
    """Of the current or last attempt."""
    failure: Failure | None = None


class FailureReason(_Frozen):
    """One reason, over all rollouts of a batch that failed or were cancelled for it: messages that differ in numbers
    alone count as one. GET /v1/batches/{batch_id}/failures, the most frequent first."""

    type: FailureType
    message: str
    """As the first of them has it."""
    rollouts: int
    group_ids: list[str]
    """The inputs concerned; the first hundred."""


class SessionView(_Frozen):
    """A session that a runtime was asked for and has not confirmed to be gone. GET /v1/sessions."""

    session_id: str
    state: Literal["starting", "running", "collecting", "stopping"]
    since: float
    """Unix seconds: when it was admitted, or was to be stopped."""
    runtime: str
    """Kind and address."""
    batch_id: str
    group_id: str | None = None
    """With ``index``: the rollout it runs; None when it is only to be stopped."""
    index: int | None = None


class StopSessions(_Frozen):
    """POST /v1/sessions/stop."""

    session_ids: list[str] | None = Field(default=None, max_length=10_000)
    """Their rollouts are cancelled; those not known or already being stopped are passed over. None: every batch is
    cancelled, so that nothing starts another."""


class Timings(_Frozen):
    """Unix seconds; None: did not happen."""

    admitted_at: float | None = None
    invoked_at: float | None = None
    started_at: float | None = None
    noticed_at: float | None = None
    """When the dispatcher learned that the result exists."""
    finished_at: float | None = None


class RolloutResult(_Frozen):
    """A finished rollout, without its tokens; the trajectory travels beside it (JSON tree or packed)."""

    rollout_id: str
    batch_id: str
    group_id: str
    index: int
    state: RolloutState
    attempt: int
    session_id: str | None
    failure: Failure | None
    rewards: list[float] | None
    """As the agent returned them, a number or a list of numbers made a list; None unless succeeded."""
    result: dict[str, Any] | None
    """The saved S3 object without the echoed payload."""
    timings: Timings


NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
ARROW = "application/vnd.apache.arrow.stream"
"""Media types of results beside JSON and `rollway_wire.codec.MEDIA_TYPE`."""


class ResultsPage(_Frozen):
    """GET /v1/batches/{batch_id}/results?cursor=&limit=&wait_s=. Results in the order they finished.

    On the wire each entry of ``results`` is ``{"rollout": RolloutResult, "trajectory": tree | null}``; with
    ``Accept: application/vnd.rollway.packed`` the whole page is one packed document.
    """

    results: list[dict[str, Any]]
    cursor: int
    """Pass back to get what finished after these."""
    finished: bool
    """True when every rollout is terminal and this page reaches the end."""
