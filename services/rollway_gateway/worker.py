"""A worker: one inference server as the gateway knows it. Plain state; the health watch and the calls report to it."""

from __future__ import annotations

from asyncio import Timeout, get_running_loop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rollway_gateway.breaker import Breaker
from rollway_gateway.capture.stream import Fingerprint
from rollway_gateway.engine_account import EngineAccount
from rollway_gateway.exact.standing import UNKNOWN, Standing
from rollway_wire.gateway import WorkerState


def split_worker_url(url: str) -> tuple[str, str]:
    """(scheme and host, API path). A path in the URL is the API path; without one it is /v1."""
    parts = urlsplit(url.rstrip("/"))
    return f"{parts.scheme}://{parts.netloc}", parts.path or "/v1"


@dataclass(slots=True, eq=False)
class Worker:
    """Not healthy until its first successful check."""

    worker_id: str
    url: str
    api_path: str
    given_model: str | None
    """Sent in place of whatever the agent names."""
    weight: int
    tokenizer: str | None = None
    """Folder of the model's tokenizer and template, where it is not the one the server names."""
    routed_experts: bool = False
    """It was started to return them, and they are kept."""
    models: tuple[str, ...] = ()
    """As the server lists them, its base models first."""
    root: str | None = None
    """Where the server says its model lies."""
    context: int | None = None
    """Tokens of prompt and completion together, as the server says."""
    standing: Standing = UNKNOWN
    agreements: int = 0
    """Chat calls whose prompt was, id by id, what its template renders here."""
    readings: int = 0
    """Chat answers that were read here too."""
    grammars: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """What its chat route samples tool calls with, by what was asked (`exact.asking`)."""
    healthy: bool = False
    detail: str | None = "not checked yet"
    failures: int = 0
    passed_at: float = float("-inf")
    """Loop time of the latest check that it passed."""
    breaker: Breaker = field(default_factory=Breaker)
    draining: bool = False
    """It gets no new calls."""
    when_idle: list[Callable[[], None]] = field(default_factory=list)
    """Called once each, when no call is there any more."""
    waits: set[Timeout] = field(default_factory=set)
    """Of the calls there, for bytes."""
    active: int = 0
    picks: int = 0
    """Sessions ever placed here."""
    begun: int = 0
    """Calls ever sent here."""
    account: EngineAccount | None = None
    """Its tokens against its engine's counter; None: the engine has none, or was not asked yet."""
    bytes_at: float = float("-inf")
    """Loop time of the last byte of an answer."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)

    @property
    def api_url(self) -> str:
        return self.url + self.api_path

    @property
    def model(self) -> str | None:
        return self.given_model or (self.models[0] if self.models else None)

    def model_for(self, asked: str | None) -> str | None:
        """The model name to send: the given one; of several served ones the agent's choice; else the only one."""
        if self.given_model is None and asked in self.models:
            return asked
        return self.model or asked

    def change(self, model: str | None, weight: int, tokenizer: str | None, routed_experts: bool) -> None:
        """Take another registration of the same server."""
        if (self.given_model, self.tokenizer) != (model, tokenizer):
            self.standing = UNKNOWN
        self.given_model, self.weight, self.tokenizer = model, weight, tokenizer
        self.routed_experts = routed_experts

    @property
    def usable(self) -> bool:
        return self.healthy and not self.draining

    def take(self) -> None:
        """A call goes there."""
        self.active += 1

    def free(self) -> None:
        """A call left."""
        self.active -= 1
        if not self.active:
            waiting, self.when_idle = self.when_idle, []
            for tell in waiting:
                tell()

    def hang_up(self) -> None:
        """Nothing more is expected of it: its calls end as if they had waited long enough."""
        for wait in self.waits:
            wait.reschedule(get_running_loop().time())

    def check_passed(self, *, now: float) -> None:
        if not self.healthy:
            self.fingerprint.forget()  # it may have been restarted with another configuration
            self.agreements = self.readings = 0
            self.grammars.clear()
        self.healthy, self.failures, self.detail, self.passed_at = True, 0, None, now

    def answered(self) -> None:
        """A call got its answer: what failed before was not one failure after another."""
        self.failures = 0
        self.breaker.answered()

    def check_failed(self, detail: str, *, now: float, limit: int, alive_window_s: float) -> None:
        """A failed check. It counts only when no answer's bytes flowed lately: busy is not dead."""
        if now - self.bytes_at < alive_window_s:
            return
        self.failures += 1
        if self.failures >= limit or not self.healthy:
            self.healthy, self.detail = False, detail

    def state(self) -> WorkerState:
        return WorkerState(
            worker_id=self.worker_id, url=self.url, api_path=self.api_path, model_name=self.model, weight=self.weight,
            healthy=self.healthy, active_requests=self.active, detail=self.detail, mode=self.standing.mode,
            mode_reason=self.standing.said, routed_experts=self.routed_experts,
            ledger=None if self.account is None else self.account.state(), draining=self.draining,
            breaker=self.breaker.state,
        )  # fmt: skip
