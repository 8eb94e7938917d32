"""A pool: one trainer's workers, one policy version, one gate. Pure state; calls enter, choose a worker, and leave."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Protocol

from rollway_gateway.openai_errors import AgentError
from rollway_gateway.worker import Worker, split_worker_url
from rollway_wire.gateway import PoolState, WorkerSpec
from rollway_wire.problems import Conflict, NotFound
from rollway_wire.tokens import NO_VERSION


class PoolCall(Protocol):
    """What a pool needs of a call in flight."""

    def abort(self, reason: str, error: AgentError | None) -> None: ...

    @property
    def upstream(self) -> tuple[Worker, str] | None:
        """Where it is being answered, and under which request id; None: nowhere."""


class Pool:
    """Workers, gate and calls in flight of one name."""

    def __init__(self, name: str, *, retry_after_s: float) -> None:
        self.name = name
        self.gate: Literal["open", "fenced", "paused"] = "open"
        self._refuses = False
        """While paused."""
        self.policy_version: int | None = None
        self.workers: dict[str, Worker] = {}
        self._calls: set[PoolCall] = set()
        self._held: dict[PoolCall, Callable[[], None]] = {}
        """Calls that wait for the gate, and what wakes them."""
        self._retry_after_s = retry_after_s
        self._idle: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        return NO_VERSION if self.policy_version is None else self.policy_version

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    # -- calls

    def enter(self, call: PoolCall) -> None:
        """Admit a call.

        Raises:
            AgentError: 503 with Retry-After while fenced, and while paused where new calls are refused.
        """
        if self.gate == "fenced" or (self.gate == "paused" and self._refuses):
            raise AgentError(
                503, f"pool {self.name!r} is {self.gate} for a weight update: try again",
                retry_after_s=self._retry_after_s,
            )  # fmt: skip
        self._calls.add(call)

    def hold(self, call: PoolCall, wake: Callable[[], None]) -> None:
        """An admitted call waits while the pool is paused; ``wake`` is called when the gate changes, and the call
        enters again."""
        self._held[call] = wake
        self._take_out(call)

    def release(self, call: PoolCall) -> None:
        """A call waits no longer, whatever became of it."""
        self._held.pop(call, None)

    def leave(self, call: PoolCall) -> None:
        self._take_out(call)

    def _take_out(self, call: PoolCall) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._tell_idle()

    def choose(self, preferred: str | None, tried: Collection[Worker]) -> Worker:
        """The session's own worker while it is healthy, else the least loaded for its weight.

        Raises:
            AgentError: 503 with Retry-After when no healthy worker is left.
        """
        own = self.workers.get(preferred) if preferred is not None else None
        if own is not None and own.healthy and own not in tried:
            return own
        healthy = [w for w in self.workers.values() if w.healthy and w not in tried]
        if not healthy:
            why = "has no workers" if not self.workers else "has no healthy worker"
            raise AgentError(503, f"pool {self.name!r} {why}", retry_after_s=self._retry_after_s)
        chosen = min(healthy, key=lambda w: (w.active / w.weight, w.picks / w.weight))
        chosen.picks += 1
        return chosen

    # -- the gate

    def as_tree(self) -> dict[str, Any]:
        """Gate and policy version as JSON values, for `restore`."""
        return {"gate": self.gate, "refuses": self._refuses, "policy_version": self.policy_version}

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Take them as they were."""
        self.gate, self._refuses, self.policy_version = tree["gate"], tree["refuses"], tree["policy_version"]

    def open(self, policy_version: int | None) -> None:
        self.gate = "open"
        if policy_version is not None:
            self.policy_version = policy_version
        self._tell_idle()
        self._wake()

    def fence(self) -> None:
        self.gate = "fenced"
        self._wake()

    def pause(self, *, refuses: bool) -> None:
        self.gate, self._refuses = "paused", refuses

    def _wake(self) -> None:
        waiting, self._held = self._held, {}
        for wake in waiting.values():
            wake()

    def when_idle(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once, when no call is in flight or the pool is opened; at once if that is so."""
        if self._calls and self.gate != "open":
            self._idle.append(tell)
        else:
            tell()

    @property
    def calls(self) -> list[PoolCall]:
        """At a worker, or about to be."""
        return list(self._calls)

    def abort_calls(self, reason: str) -> None:
        for call in list(self._calls):
            call.abort(reason, AgentError(503, f"{reason}: try again", retry_after_s=self._retry_after_s))

    def _tell_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for tell in waiting:
            tell()

    # -- workers

    def put_worker(self, spec: WorkerSpec, *, api_path: str | None = None) -> tuple[Worker, bool]:
        """Register a worker, or change the one with the same URL. Returns it and whether it is new.

        Raises:
            Conflict: the worker id names another URL.
        """
        url, path = split_worker_url(spec.url)
        if api_path is not None:
            path = "/" + api_path.strip("/")
        same = next((w for w in self.workers.values() if w.url == url and w.api_path == path), None)
        worker_id = spec.worker_id or (same.worker_id if same else f"w-{uuid.uuid4().hex[:12]}")
        holder = self.workers.get(worker_id)
        if holder is not None and holder is not same:
            raise Conflict(f"worker id {worker_id!r} belongs to {holder.api_url}")
        if same is not None:
            del self.workers[same.worker_id]
            same.worker_id = worker_id
            same.change(spec.model_name, spec.weight, spec.tokenizer, spec.routed_experts)
        worker = same or Worker(
            worker_id, url, path, spec.model_name, spec.weight, spec.tokenizer, spec.routed_experts
        )  # fmt: skip
        if same is None:  # a newcomer takes its share of sessions from now on, not of all before it
            worker.picks = min((w.picks * spec.weight // w.weight for w in self.workers.values()), default=0)
        self.workers[worker_id] = worker
        return worker, same is None

    def remove_worker(self, worker_id: str) -> None:
        """Calls in flight on it go on; no new one is sent there.

        Raises:
            NotFound: no such worker.
        """
        if self.workers.pop(worker_id, None) is None:
            raise NotFound(f"pool {self.name!r} has no worker {worker_id!r}")

    def state(self, sessions: int) -> PoolState:
        return PoolState(
            pool=self.name, gate=self.gate, policy_version=self.policy_version, in_flight=self.in_flight,
            sessions=sessions, workers=[w.state() for w in self.workers.values()], held=len(self._held),
        )  # fmt: skip
