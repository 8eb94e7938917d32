"""What all processes were told of their pools, so that one that starts again knows it before it serves anyone. Pure.

It is noted before they are told: a process that ends after it was told, while others still answer, must come back as it
was told to be, not open where the others are fenced. What every one of them refused is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Gate:
    """None: nothing was said."""

    gate: Literal["open", "fenced", "paused"] | None = None
    refuses: bool | None = None
    policy_version: int | None = None


@dataclass(slots=True)
class _Pool:
    gate: _Gate = field(default_factory=_Gate)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)


class Told:
    """Each method notes one thing, and returns what takes it back."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def opened(self, pool: str, policy_version: int | None) -> Undo:
        return self._gate(pool, gate="open", refuses=False, **_version(policy_version))

    def version(self, pool: str, policy_version: int | None) -> Undo:
        return self._gate(pool, **_version(policy_version))

    def fenced(self, pool: str) -> Undo:
        return self._gate(pool, gate="fenced", refuses=False)

    def paused(self, pool: str, *, refuses: bool) -> Undo:
        return self._gate(pool, gate="paused", refuses=refuses)

    def worker(self, pool: str, said: Mapping[str, Any]) -> Undo:
        """Registered, under the ``worker_id`` in it."""
        return self._worker(pool, said["worker_id"], {**said, "draining": False})

    def drained(self, pool: str, worker_id: str) -> Undo:
        known = self._pools.get(pool, _Pool()).workers.get(worker_id)
        return (lambda: None) if known is None else self._worker(pool, worker_id, {**known, "draining": True})

    def removed(self, pool: str, worker_id: str) -> Undo:
        return self._worker(pool, worker_id, None)

    def tree(self) -> list[dict[str, Any]]:
        """As JSON values, for `pools_tree.take_told`."""
        return [
            {
                "name": name, "gate": pool.gate.gate, "refuses": pool.gate.refuses,
                "policy_version": pool.gate.policy_version, "workers": list(pool.workers.values()),
            }
            for name, pool in self._pools.items()
        ]  # fmt: skip

    def _gate(self, name: str, **changed: Any) -> Undo:
        before = self._pools.get(name)
        pool = self._pools.setdefault(name, _Pool())
        was, pool.gate = pool.gate, replace(pool.gate, **changed)

        def undo() -> None:
            pool.gate = was
            if before is None and not pool.workers:
                self._pools.pop(name, None)

        return undo

    def _worker(self, name: str, worker_id: str, said: dict[str, Any] | None) -> Undo:
        before = self._pools.get(name)
        pool = self._pools.setdefault(name, _Pool())
        was = pool.workers.pop(worker_id, None)
        if said is not None:
            pool.workers[worker_id] = said

        def undo() -> None:
            pool.workers.pop(worker_id, None)
            if was is not None:
                pool.workers[worker_id] = was
            if before is None and not pool.workers and pool.gate == _Gate():
                self._pools.pop(name, None)

        return undo


def _version(policy_version: int | None) -> dict[str, int]:
    return {} if policy_version is None else {"policy_version": policy_version}
