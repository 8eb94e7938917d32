"""A pool: one trainer's workers, one policy version, one gate. Pure state.

A call enters, and from then until it leaves is in flight, but for the time that it waits: while the pool is paused, or
while every worker that it could go to is full. A place that becomes free is given to the call that waits longest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, overload

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


@dataclass(slots=True, eq=False, kw_only=True)
class Seeking:
    """A call that looks for a place."""

    call: PoolCall
    preferred: str | None
    """The session's worker."""
    avoided: Collection[Worker]
    """Not these."""
    room: int
    """A worker with so many calls is full."""
    first: bool
    """Its answer has begun: it goes before others."""
    wake: Callable[[], None]
    """Called once, when it has waited; ``worker`` or ``error`` is set."""
    worker: Worker | None = None
    error: AgentError | None = None


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
        self._waiting: list[Seeking] = []
        """Calls that wait for the gate, or for a place at a worker."""
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
            raise self._refusal()
        self._calls.add(call)

    def place(self, seeking: Seeking, *, limit: int) -> Worker | None:
        """A place at a worker for an admitted call; `free` it. None: it waits, until its ``wake`` is called.

        Args:
            limit: most calls that may wait.

        Raises:
            AgentError: 503 with Retry-After: no worker, a fence, or as many wait.
        """
        if self.gate == "fenced":
            raise self._refusal()
        if self.gate == "open" and not self._waiting and (worker := self._taken(seeking)) is not None:
            return worker
        if self.gate == "open":
            self._usable(seeking.avoided)
        if len(self._waiting) >= limit:
            raise AgentError(
                503, f"pool {self.name!r} is full: {limit} calls wait; try again", retry_after_s=self._retry_after_s
            )
        self._waiting.insert(0 if seeking.first else len(self._waiting), seeking)
        self._take_out(seeking.call)
        return None

    def free(self, worker: Worker) -> None:
        """A call left the place it had."""
        worker.free()
        self.hand_out()

    def stop_waiting(self, seeking: Seeking) -> None:
        """A call waits no longer and takes no place."""
        if seeking in self._waiting:
            self._waiting.remove(seeking)
        elif seeking.worker is not None:
            self._take_out(seeking.call)
            self.free(seeking.worker)

    def hand_out(self) -> None:
        """Give free places to the calls that wait, in their order."""
        if self.gate != "open" or not self._waiting:
            return
        for seeking in list(self._waiting):
            try:
                seeking.worker = self._taken(seeking)
            except AgentError as e:
                seeking.error = e
            if seeking.worker is None and seeking.error is None:
                if not seeking.avoided:
                    return  # nobody else finds a place either
                continue
            self._waiting.remove(seeking)
            if seeking.worker is not None:
                self._calls.add(seeking.call)
            seeking.wake()

    def _taken(self, seeking: Seeking) -> Worker | None:
        worker = self.choose(seeking.preferred, seeking.avoided, room=seeking.room)
        if worker is not None:
            worker.take()
        return worker

    def _refusal(self) -> AgentError:
        return AgentError(
            503, f"pool {self.name!r} is {self.gate} for a weight update: try again", retry_after_s=self._retry_after_s
        )

    def leave(self, call: PoolCall) -> None:
        self._take_out(call)

    def _take_out(self, call: PoolCall) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._tell_idle()

    @overload
    def choose(self, preferred: str | None, avoided: Collection[Worker]) -> Worker: ...
    @overload
    def choose(self, preferred: str | None, avoided: Collection[Worker], *, room: int) -> Worker | None: ...
    def choose(self, preferred: str | None, avoided: Collection[Worker], *, room: int | None = None) -> Worker | None:
        """The session's own worker while it can be asked, else the least loaded for its weight.

        Args:
            room: a worker with so many calls is full; None: it is not looked at.

        Raises:
            AgentError: 503 with Retry-After when no worker can be asked. None: all that can are full.
        """
        usable = self._usable(avoided)
        sound = [w for w in usable if w.breaker.admits(w.active)] or usable
        able = sound if room is None else [w for w in sound if w.active < room]
        if not able:
            return None
        own = self.workers.get(preferred) if preferred is not None else None
        if own is not None and own in able:
            return own
        chosen = min(able, key=lambda w: (w.active / w.weight, w.picks / w.weight))
        chosen.picks += 1
        return chosen

    def _usable(self, avoided: Collection[Worker]) -> list[Worker]:
        usable = [w for w in self.workers.values() if w.usable and w not in avoided]
        if not usable:
            why = "has no workers" if not self.workers else "has no healthy worker"
            raise AgentError(503, f"pool {self.name!r} {why}", retry_after_s=self._retry_after_s)
        return usable

    def has_other(self, avoided: Collection[Worker]) -> bool:
        return any(w.usable and w not in avoided for w in self.workers.values())

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
        self.hand_out()

    def fence(self) -> None:
        self.gate = "fenced"
        waiting, self._waiting = self._waiting, []
        for seeking in waiting:
            seeking.error = self._refusal()
            seeking.wake()

    def pause(self, *, refuses: bool) -> None:
        self.gate, self._refuses = "paused", refuses

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
            same.draining = False
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
        del self.workers[self.worker(worker_id).worker_id]
        self.hand_out()

    def worker(self, worker_id: str) -> Worker:
        """Raises:
        NotFound: no such worker."""
        found = self.workers.get(worker_id)
        if found is None:
            raise NotFound(f"pool {self.name!r} has no worker {worker_id!r}")
        return found

    def state(self, sessions: int) -> PoolState:
        return PoolState(
            pool=self.name, gate=self.gate, policy_version=self.policy_version, in_flight=self.in_flight,
            sessions=sessions, workers=[w.state() for w in self.workers.values()],
            held=0 if self.gate == "open" else len(self._waiting),
            waiting=len(self._waiting) if self.gate == "open" else 0,
        )  # fmt: skip
