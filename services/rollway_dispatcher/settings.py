"""The dispatcher's settings, one frozen class; environment prefix ``ROLLWAY_DISPATCHER_``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from rollway_dispatcher.webhook_signature import signing_key
from rollway_kit.bearer import is_loopback
from rollway_kit.keys import SHORTEST_SECRET, split_secrets
from rollway_kit.settings import ServiceSettings


class DispatcherSettings(ServiceSettings):
    """Every knob of the dispatcher. What is missing when a batch needs it is refused at submit, naming the setting."""

    model_config = SettingsConfigDict(
        env_prefix="ROLLWAY_DISPATCHER_",
        frozen=True,
        extra="forbid",
        env_nested_delimiter="__",
        validate_default=True,
        use_attribute_docstrings=True,
    )

    port: int = Field(default=8800, ge=0, le=65535)
    public_url: str | None = None
    """Address at which agents reach this service, for their reports; with ``database_url`` the address of all
    dispatchers together, such as a load balancer's. None: http://host:port, except on 0.0.0.0 or ::, where no report
    target is sent and results are noticed by listing alone."""
    api_key: SecretStr | None = None
    """Asked for as a bearer token by every route but agents' reports and /health. Several, comma-separated: each is
    good. Required where other machines can reach this service: agents can too."""
    gateway_url: str | None = None
    """Address of the gateway's admin routes. Several, comma-separated: sessions are spread over them by their id.
    Needed by every batch with ``capture``."""
    gateway_api_key: SecretStr | None = None
    """The gateways' admin key, where they ask for one."""
    s3_endpoint_url: str | None = None
    """None: AWS; else an S3-compatible store."""
    s3_bucket: str | None = None
    """Bucket of batches that name none."""
    region: str | None = None
    """Region of S3, and of the queue where its URL names none; None: the SDK's own resolution."""
    sqs_queue_url: str | None = None
    """SQS queue of the dispatcher's own to which S3 tells of objects made, so that results of agents that do not push
    are noticed without listing. Several dispatchers share one. Its endpoint is where the URL points."""
    state_path: Path = Path("rollway-dispatcher.sqlite3")
    """SQLite file with every batch, rollout and result. One dispatcher per file."""
    database_url: SecretStr | None = None
    """PostgreSQL (``postgresql://user:password@host/name``) in place of the SQLite file, for several dispatchers at
    once: they share batches, take over from one that is gone, and keep to one rate per runtime."""
    lease_s: float = Field(default=10.0, ge=1, le=600)
    """With ``database_url``: silence of a dispatcher after which another takes its batches over."""
    keep_results_s: float = Field(default=7 * 86400.0, gt=0)
    """Finished batches are deleted this long after they finished."""
    max_concurrent: int = Field(default=1000, ge=1)
    """Rollouts alive at once, over all batches."""
    poll_interval_s: float = Field(default=1.0, gt=0, le=300)
    """Seconds between two listings of one batch's results, at least."""
    heartbeat_interval_s: float = Field(default=5.0, gt=0, le=300)
    """Asked of agents that report."""
    heartbeat_window_s: float = Field(default=20.0, gt=0)
    """Silence after which an agent that has reported before is taken for dead."""
    pressure_interval_s: float = Field(default=2.0, ge=0, le=300)
    """Seconds between two looks at the engines of the pools in use; while all of a pool's are full nothing is admitted
    for it. 0: do not look."""
    pressure_waiting: int = Field(default=8, ge=0)
    """An engine with more requests waiting than this is full, until none waits."""
    pressure_kv: float = Field(default=0.95, gt=0, le=1)
    """An engine whose KV cache is used over this share is full, until it is under nine tenths of it."""
    throttle_patience_s: float = Field(default=300.0, ge=0)
    """How long a runtime may refuse one attempt for rate or quota before it fails as throttled."""
    collect_timeout_s: float = Field(default=600.0, gt=0)
    """How long collecting a result (S3, then the gateway) is retried before the attempt fails."""
    allow_process_runtime: bool = False
    """Let batches start local processes on this machine. Whoever can post a batch can then run commands here."""
    keep_processes: bool = True
    """Local agent processes outlive a clean stop and are found again at the next start, as they outlive a crash. False:
    a clean stop ends them, and the next start tries their rollouts again."""
    webhook_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts that batches' webhooks may call, comma-separated: names, ``*.`` before one for all below it, ``:port``
    after one for that port alone. None: no webhooks."""
    webhook_secret: SecretStr | None = None
    """Signs webhooks' calls; after ``whsec_`` it is base64. Needed with `webhook_hosts`."""
    max_body_bytes: int = Field(default=256 * 2**20, ge=1024)
    """Largest request body."""

    @field_validator("api_key")
    @classmethod
    def _secrets(cls, v: SecretStr | None) -> SecretStr | None:
        if v is not None:
            split_secrets(v.get_secret_value())
        return v

    @field_validator("gateway_url")
    @classmethod
    def _http_urls(cls, v: str | None) -> str | None:
        urls = [] if v is None else [u.strip() for u in v.split(",") if u.strip()]
        return ",".join(filter(None, map(cls._http_url, urls))) or None

    @field_validator("public_url", "s3_endpoint_url", "sqs_queue_url")
    @classmethod
    def _http_url(cls, v: str | None) -> str | None:
        if v is not None and not v.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return v.rstrip("/") if v is not None else None

    @field_validator("webhook_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, v: object) -> object:
        return tuple(h.strip() for h in v.split(",") if h.strip()) if isinstance(v, str) else v

    @field_validator("webhook_hosts")
    @classmethod
    def _are_hosts(cls, v: tuple[str, ...]) -> tuple[str, ...]:
        for host in v:
            if not re.fullmatch(r"(\*\.)?[A-Za-z0-9.-]+(:[0-9]{1,5})?", host):
                raise ValueError(f"{host!r} is not a host name, with *. before it or a port after it")
        return v

    @field_validator("webhook_secret")
    @classmethod
    def _signs(cls, v: SecretStr | None) -> SecretStr | None:
        if v is not None and len(v.get_secret_value()) < SHORTEST_SECRET:
            raise ValueError(f"must be at least {SHORTEST_SECRET} characters")
        if v is not None:
            signing_key(v.get_secret_value())
        return v

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> DispatcherSettings:
        if self.webhook_hosts and self.webhook_secret is None:
            raise ValueError("webhook_hosts needs ROLLWAY_DISPATCHER_WEBHOOK_SECRET: an unsigned call proves nothing")
        return self

    @model_validator(mode="after")
    def _window_spans_beats(self) -> DispatcherSettings:
        if self.heartbeat_window_s < 2 * self.heartbeat_interval_s:
            raise ValueError("heartbeat_window_s must be at least twice heartbeat_interval_s, or one late beat kills")
        return self

    @model_validator(mode="after")
    def _protected(self) -> DispatcherSettings:
        if self.api_key is None and not is_loopback(self.host):
            raise ValueError(
                f"{self.host or 'every interface'} can be reached from other machines, agents' among them, so callers "
                "need a key: set ROLLWAY_DISPATCHER_API_KEY (`openssl rand -hex 32` makes one), or bind 127.0.0.1"
            )
        return self

    @property
    def api_keys(self) -> list[bytes]:
        return [] if self.api_key is None else split_secrets(self.api_key.get_secret_value())

    @property
    def gateway_urls(self) -> list[str]:
        return [] if self.gateway_url is None else self.gateway_url.split(",")

    def report_base(self) -> str | None:
        """Where agents send reports; None when no reachable address is known."""
        if self.public_url is not None:
            return self.public_url
        if self.host in ("0.0.0.0", "::", "") or self.port == 0:
            return None
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"
