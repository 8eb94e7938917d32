"""The gateway's settings, read from ``ROLLWAY_GATEWAY_*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from rollway_gateway.worker_address import check_http_url, check_worker_url
from rollway_kit.bearer import is_loopback
from rollway_kit.keys import split_secrets
from rollway_kit.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="ROLLWAY_GATEWAY_")

    port: int = 8700
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    """A listener of its own for everything that is not an agent's; `port` then serves agents alone. 0 takes a free one
    and logs it. None: one port serves both, as rllm-model-gateway's clients expect, on loopback only."""
    admin_host: str | None = None
    """Interface of that listener; None: `host`."""
    processes: int = Field(default=1, ge=1, le=64)
    """Gateway processes, each with the sessions whose ids fall to it, on `port` and the ports after it; the admin
    listener answers for all. More than one needs `admin_port`. On the command line ``--workers`` means the same; the
    setting `workers` is inference servers, as ``--worker`` is."""
    process: int | None = None
    """Set by the supervisor for each of them, as are the next two."""
    siblings: str = ""
    """Agents' listeners of all, comma-separated."""
    sockets: str = ""
    """File descriptors: agents' listener, admin listener, a pipe that closes when the supervisor is gone."""
    public_url: str | None = None
    """Base URL put into session tickets, as agents reach this gateway; None: scheme and host of the request that opens
    the session, with the agents' port."""
    key_secret: SecretStr | None = None
    """Signs agents' keys, and makes them required. Several, comma-separated: the first signs, all verify, so that one
    can be replaced while sessions run. None: keys are not asked for."""
    require_keys: bool | None = None
    """None: where `key_secret` is set."""
    key_life_s: float = Field(default=9 * 3600.0, gt=0)
    """An agent's key expires so long after its session opened; a runtime ends a rollout after eight hours. Sealing ends
    it at once."""
    admin_key: SecretStr | None = None
    """Asked for as a bearer token by everything that is not an agent's or /health. Several, comma-separated: each is
    good."""
    allow_link_local_workers: bool = False
    """Let workers have link-local addresses, where clouds serve credentials to whoever asks from inside."""
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
    routed_experts: bool = False
    """The workers given here were started to return routed experts, and they are kept (`WorkerSpec.routed_experts`)."""
    probe_timeout_s: float = Field(default=120, gt=0)
    """Proving a template and asking a worker what it can do, together."""
    max_body_mib: float = Field(default=64, gt=0)
    """Largest request body."""
    body_timeout_s: float = Field(default=60, gt=0)
    """A request body must be whole in so many seconds, and one more for each 16 KiB of it."""
    connect_timeout_s: float = Field(default=10, gt=0)
    upstream_inactivity_s: float = Field(default=900, gt=0)
    """A worker that sends no byte of an answer for so long has failed the call (unstreamed: the whole generation)."""
    upstream_keepalive_s: float = Field(default=4, gt=0)
    """Idle connections to workers live so long; vLLM closes its own after 5 s."""
    max_attempts: int = Field(default=3, ge=1, le=5)
    """Workers tried for a call of whose answer nothing was delivered."""
    retry_backoff_s: float = Field(default=0.2, ge=0)
    """Before a call is tried again it waits a random time of up to so long, then up to twice as long, and so on."""
    breaker_failures: int = Field(default=5, ge=1)
    """Calls in a row that fail at a worker before others are preferred to it."""
    breaker_open_s: float = Field(default=5, gt=0)
    """After so long, and a passed check, such a worker is tried with one call."""
    hang_s: float = Field(default=60, gt=0)
    """Calls at a worker that passes no check and sends no byte for so long are given up there."""
    max_in_flight: int = Field(default=1024, ge=1)
    """Most calls at one worker at once; further ones wait for a place."""
    max_waiting: int = Field(default=4096, ge=0)
    """Most calls of one pool that wait, for a place or for a paused pool; further ones are told to come again."""
    hold_s: float = Field(default=900, gt=0)
    """A call waits at most so long for a paused pool to open, or for a place at a worker."""
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
    durability: Literal["memory", "journal", "fsync"] | None = None
    """What a call outlives once its agent has the answer. memory: nothing. journal: the process. fsync: the machine.
    None: journal, or memory where `port` is 0 and there is no `journal_dir`: what comes back under another URL each
    time is not found by its agents again."""
    journal_dir: Path | None = None
    """Folder of the journal, made where it is not there; each gateway process needs its own. None:
    ``rollway-journal/{port}`` where it was started."""
    journal_segment_mib: float = Field(default=64, gt=0)
    """Files of the journal are begun anew at this size; the oldest go when their sessions are over."""
    session_memory_mib: float = Field(default=1024, ge=0)
    """Memory for sessions, about; beyond it the coldest are left to the journal and read back when they are needed.
    0: no limit. Without a journal there is none."""
    sealed_keep_s: float = Field(default=24 * 3600.0, gt=0)
    """A sealed session can be read for so long, if it is not deleted before."""
    archive_bucket: str | None = None
    """S3 bucket for sealed trajectories; their journal is then reclaimed. None: they stay in the journal."""
    archive_prefix: str = "trajectories"
    """Of their keys."""
    s3_endpoint_url: str | None = None
    """Of an S3-compatible store; None: AWS."""
    s3_region: str | None = None
    drain_s: int = Field(default=10, ge=0)
    """At shutdown, calls in flight get so many seconds before they are cancelled."""
    _journal_folder: Path | None = PrivateAttr(default=None)

    @field_validator("workers", mode="before")
    @classmethod
    def _split(cls, v: object) -> object:
        return [u.strip() for u in v.split(",") if u.strip()] if isinstance(v, str) else v

    @field_validator("key_secret", "admin_key")
    @classmethod
    def _secrets(cls, v: SecretStr | None) -> SecretStr | None:
        if v is not None:
            split_secrets(v.get_secret_value())
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

    @field_validator("workers")
    @classmethod
    def _worker_urls(cls, v: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for url in v:
            check_worker_url(url, allow_link_local=info.data.get("allow_link_local_workers", False))
        return v

    @model_validator(mode="after")
    def _protected(self) -> GatewaySettings:
        """What other machines can reach asks for keys, and keeps agents off the admin routes."""
        missing = [name for name in ("key_secret", "admin_key") if getattr(self, name) is None]
        missing += ["admin_port"] if self.admin_port is None else []
        missing += ["require_keys (unset or true)"] if self.require_keys is False else []
        public = [host for host in (self.host, self.admin_interface) if not is_loopback(host)]
        if public and missing:
            names = ", ".join(f"ROLLWAY_GATEWAY_{name.upper()}" for name in missing)
            raise ValueError(
                f"{public[0]} can be reached from other machines, so agents need keys and the admin routes a listener "
                f"and a key of their own: set {names} (`openssl rand -hex 32` makes a secret), or bind 127.0.0.1"
            )
        if self.require_keys and self.key_secret is None:
            raise ValueError(
                "require_keys needs ROLLWAY_GATEWAY_KEY_SECRET, or agents' keys would die with the process"
            )
        if self.processes > 1 and self.admin_port is None:
            raise ValueError("several processes need a listener for all of them: set ROLLWAY_GATEWAY_ADMIN_PORT")
        if self.admin_port is not None and self.admin_port == self.port != 0:
            raise ValueError("admin_port must differ from port")
        return self

    @model_validator(mode="after")
    def _journaled(self) -> GatewaySettings:
        nameless = self.port == 0 and self.journal_dir is None
        if nameless and self.durability not in (None, "memory"):
            raise ValueError(f"durability={self.durability} with port 0 needs a journal_dir")
        if self.durability != "memory" and not nameless:
            self._journal_folder = self.journal_dir or Path("rollway-journal") / str(self.port)
        return self

    @property
    def journal_folder(self) -> Path | None:
        """None: sessions are in memory alone."""
        return self._journal_folder

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mib * 2**20)

    @property
    def admin_interface(self) -> str:
        return self.host if self.admin_host is None else self.admin_host

    @property
    def signing_secrets(self) -> list[bytes] | None:
        return None if self.key_secret is None else split_secrets(self.key_secret.get_secret_value())

    @property
    def keys_required(self) -> bool:
        return self.key_secret is not None if self.require_keys is None else self.require_keys

    @property
    def admin_keys(self) -> list[bytes]:
        return [] if self.admin_key is None else split_secrets(self.admin_key.get_secret_value())
