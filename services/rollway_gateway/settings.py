"""The gateway's settings, read from ``ROLLWAY_GATEWAY_*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from rollway_kit.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="ROLLWAY_GATEWAY_")

    port: int = 8700
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    public_url: str | None = None
    """Base URL put into session tickets, as agents reach this gateway; None: scheme and Host of the request that opens
    the session."""
    key_secret: SecretStr | None = Field(default=None, min_length=16)
    """Signs the API keys that carry a session; None: a random one per process."""
    workers: Annotated[tuple[str, ...], NoDecode] = ()
    """Inference servers of the pool ``default``, comma-separated base URLs. More can be registered at any time."""
    implicit_sessions: bool = True
    """An unknown session id on an agent route opens a session in the pool ``default``, as rllm-model-gateway does."""
    keep_messages: bool = True
    """Keep the messages of calls for rllm's traces, in sessions opened by its API or implicitly; others never do."""
    kept_messages_mib: float = Field(default=16, ge=0)
    """Most memory for the kept messages of one session; the oldest calls lose theirs first."""
    kept_responses_mib: float = Field(default=4, ge=0)
    """Most memory for the responses of one session that `previous_response_id` may continue; the oldest go first."""
    mode: Literal["auto", "exact", "mirror"] = "auto"
    """auto: exact where the model's template is proven and the worker agrees with it, else mirror. exact: a worker that
    cannot be exact is not healthy. mirror: chat calls are passed on as they are."""
    history: Literal["faithful", "continuous"] = "faithful"
    """Exact mode, where a template drops earlier reasoning. faithful: as it does, so the session branches; continuous:
    everything sampled stays."""
    tokenizer: str | None = None
    """Folder of tokenizer and chat template for workers registered without one; None: the folder the worker names."""
    probe_timeout_s: float = Field(default=120, gt=0)
    """Proving a template and asking a worker what it can do, together."""
    max_body_mib: float = Field(default=64, gt=0)
    """Largest request body."""
    body_timeout_s: float = Field(default=60, gt=0)
    """A request body that stops arriving for so long is refused."""
    connect_timeout_s: float = Field(default=10, gt=0)
    upstream_inactivity_s: float = Field(default=900, gt=0)
    """A worker that sends no byte of an answer for so long has failed the call (unstreamed: the whole generation)."""
    upstream_keepalive_s: float = Field(default=4, gt=0)
    """Idle connections to workers live so long; vLLM closes its own after 5 s."""
    max_attempts: int = Field(default=2, ge=1, le=5)
    """Workers tried for a call whose connection fails before anything was delivered."""
    hold_s: float = Field(default=900, gt=0)
    """A call waits at most so long for a paused pool to open."""
    retry_grace_s: float = Field(default=10, ge=0)
    """A call whose client left goes on for so long, and its answer waits so long, for a retry with the same body, which
    then gets it. 0: such a call is cancelled at once."""
    health_interval_s: float = Field(default=5, gt=0)
    health_timeout_s: float = Field(default=5, gt=0)
    health_failures: int = Field(default=3, ge=1)
    """Consecutive failures that make a worker unhealthy."""
    alive_window_s: float = Field(default=15, ge=0)
    """A worker that sent bytes of an answer within so many seconds is busy, not dead: failed checks do not count."""
    retry_after_s: float = Field(default=2, gt=0)
    """Told to agents refused for a fenced pool or for want of a healthy worker."""
    drain_s: int = Field(default=10, ge=0)
    """At shutdown, calls in flight get so many seconds before they are cancelled."""

    @field_validator("workers", mode="before")
    @classmethod
    def _split(cls, v: object) -> object:
        return [u.strip() for u in v.split(",") if u.strip()] if isinstance(v, str) else v

    @field_validator("workers")
    @classmethod
    def _worker_urls(cls, v: tuple[str, ...]) -> tuple[str, ...]:
        for url in v:
            check_http_url(url)
        return v

    @field_validator("tokenizer")
    @classmethod
    def _tokenizer(cls, v: str | None) -> str | None:
        if v is not None and not Path(v).is_dir():
            raise ValueError(f"{v!r} is no folder on this machine")
        return v

    @field_validator("public_url")
    @classmethod
    def _public_url(cls, v: str | None) -> str | None:
        return None if v is None else check_http_url(v).rstrip("/")

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mib * 2**20)


def check_http_url(url: str) -> str:
    """Return ``url`` if it is http(s) with a host and without user, query or fragment.

    Raises:
        ValueError: saying what is wrong.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http(s) URL with a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"{url!r} may not hold a user, a query or a fragment")
    if parts.port == 0:
        raise ValueError(f"{url!r} names port 0")
    return url
