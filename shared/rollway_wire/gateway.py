"""The gateway's own API (`/v1/…`): sessions, pools of workers, fence and drain. See docs/architecture.md.

A *pool* is one trainer's set of workers with one policy version and one fence. Two trainers use two pools and never
mix.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_POOL = "default"
POOL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class SessionSpec(_Frozen):
    """POST /v1/sessions."""

    session_id: str | None = None
    """Chosen by the caller (the dispatcher uses the runtime's session id); made when absent."""
    pool: str = Field(default=DEFAULT_POOL, pattern=POOL_PATTERN)
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    """Override whatever the agent sends, key by key."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest first prompt of a sequence; a longer one is refused as the engine refuses one beyond its context."""
    max_response_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a sequence after its first prompt, sampled or not: answers end there, later turns are refused."""


class SessionTicket(_Frozen):
    """What an agent needs to call the model as this session."""

    session_id: str
    base_url: str
    """OpenAI base URL naming the session, ending in /v1."""
    api_key: str
    """Carries the session for clients that take only a fixed base URL."""


class WorkerSpec(_Frozen):
    """POST /v1/pools/{pool}/workers."""

    url: str
    """Base URL of one inference server, with or without a trailing /v1."""
    worker_id: str | None = None
    model_name: str | None = None
    """Served model name to send to this worker in place of the agent's; None: the worker's only model, as probed."""
    weight: int = Field(default=1, ge=1)
    tokenizer: str | None = None
    """Folder on the gateway's machine with the model's tokenizer and template; None: the one the server names."""
    routed_experts: bool = False
    """The server was started to return routed experts (vLLM: ``--enable-return-routed-experts``), and they are to be
    kept: of each turn the rows, or the reason why there are none. They can be most of what a session weighs."""


class WorkerLedger(_Frozen):
    """Completion tokens of one worker as its answers told them and as its engine counts them, since one reading of the
    engine's counter. engine = captured + cut_off + foreign - uncounted, at ``as_of``."""

    since: float
    """Unix time of that reading: when the worker was registered, or was found to have been started anew."""
    captured: int
    """Reported as usage or captured, whatever became of the call; as of now."""
    engine: int | None
    """What the engine counted; None: the two were never compared. They are when no call is at the worker and the engine
    has nothing to do."""
    difference: int | None
    """engine - captured, at ``as_of``."""
    closes: bool | None
    """foreign and uncounted are 0."""
    cut_off: int = 0
    """Of the difference: tokens of answers that were not read to their end. The engine alone knows how many."""
    foreign: int = 0
    """Of the difference: more than that. Another client's, or lost."""
    uncounted: int = 0
    """Captured, and not counted by the engine."""
    as_of: float | None = None
    """Unix time of the latest comparison."""
    pending: int = 0
    """Of captured, since then."""
    uncertain: int | None = 0
    """Since then: how many more may have been sampled for answers not read to their end; None: any number."""


class WorkerState(_Frozen):
    worker_id: str
    url: str
    api_path: str
    model_name: str | None
    weight: int
    healthy: bool
    active_requests: int
    detail: str | None = None
    """Why it is not healthy."""
    mode: Literal["exact", "mirror"] = "mirror"
    """How chat calls go to it: with exact token ids, or passed on as they are."""
    mode_reason: str | None = None
    """What decided it, in a sentence."""
    routed_experts: bool = False
    """They are kept of its turns."""
    ledger: WorkerLedger | None = None
    """None: the engine shows no count of its tokens, or was not asked yet."""
    draining: bool = False
    """It gets no new calls. Registering it again ends that."""
    breaker: Literal["closed", "open", "half_open"] = "closed"
    """Not closed: calls failed there one after another, and go elsewhere while there is an elsewhere."""


class EngineLoad(_Frozen):
    """What one worker's engine has to do now, as its metrics say."""

    worker_id: str
    running: int
    """Requests that it samples for."""
    waiting: int
    """Requests in its queue."""
    kv_usage: float | None
    """Share of its KV cache in use, 0 to 1; None: it does not say."""


class PoolLoad(_Frozen):
    """GET /v1/pools/{pool}/load: of the healthy workers whose engines say it."""

    workers: list[EngineLoad]


class PoolState(_Frozen):
    """GET /v1/pools/{pool}, and the answer to open / fence / drain."""

    pool: str
    gate: Literal["open", "fenced", "paused"]
    """While fenced, new calls get 503 with Retry-After; while paused they wait, or get it too."""
    policy_version: int | None
    in_flight: int
    """Calls at a worker."""
    sessions: int
    workers: list[WorkerState]
    held: int = 0
    """Calls that wait for a paused pool to open."""
    waiting: int = 0
    """Calls that wait for a free place at a worker."""


class OpenPool(_Frozen):
    """POST /v1/pools/{pool}/open: accept calls, stamped with this policy version."""

    policy_version: int | None = None
    """None keeps the current one."""


class PausePool(_Frozen):
    """POST /v1/pools/{pool}/pause: for a weight update in the middle of turns. Open the pool to end it.

    What an engine aborts meanwhile (by itself, or asked to here) goes on in the same turn when the pool opens, from
    the tokens sampled so far, where exact mode can prompt with them; elsewhere the agent is told to try again.
    """

    new_calls: Literal["hold", "refuse"] = "hold"
    """hold: they wait for the pool to open. refuse: 503 with Retry-After."""
    in_flight: Literal["drain", "abort"] = "drain"
    """abort: the workers are told to end the generations now; one that has no route for it is drained."""
    timeout_s: float = Field(default=30.0, ge=0, le=3600)
    """How long to wait until no call is at a worker; the pool stays paused either way."""


class DrainWorker(_Frozen):
    """POST /v1/pools/{pool}/workers/{worker_id}/drain: no new calls there; sessions move, those in flight end."""

    timeout_s: float = Field(default=30.0, ge=0, le=3600)
    """How long to wait until no call is there; it gets no new ones either way."""


class FencePool(_Frozen):
    """POST /v1/pools/{pool}/fence: refuse new calls, then wait for those in flight."""

    drain_timeout_s: float = Field(default=30.0, ge=0, le=3600)
    """How long to wait for calls in flight; 0 returns at once."""
    abort: bool = True
    """After the wait, cancel what is still in flight (their turns are marked incomplete)."""
