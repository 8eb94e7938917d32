"""What several processes say of the same thing, as one answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rollway_wire.gateway import PoolState, WorkerLedger, WorkerState

_LEAST_OPEN = ("fenced", "paused", "open")
_WORST = ("open", "half_open", "closed")

Ledgers = Callable[[str], Mapping[str, WorkerLedger]]
"""Of a pool's workers, by id: what all processes captured against what the engine counted."""


def worker(states: Sequence[WorkerState], ledger: WorkerLedger | None) -> WorkerState:
    """Healthy where it is everywhere, exact where it is everywhere, drained once it is anywhere; its calls are those of
    all."""
    weakest = next((s for s in states if not s.healthy), next((s for s in states if s.mode != "exact"), states[0]))
    return weakest.model_copy(
        update={
            "active_requests": sum(s.active_requests for s in states),
            "draining": any(s.draining for s in states),
            "breaker": min((s.breaker for s in states), key=_WORST.index),
            "ledger": ledger,
        }
    )


def pool(states: Sequence[PoolState], ledgers: Ledgers) -> PoolState:
    """Open where it is open everywhere; counts are sums, a worker is one however many processes know it."""
    versions = {s.policy_version for s in states}
    known: dict[str, list[WorkerState]] = {}
    for state in states:
        for one in state.workers:
            known.setdefault(one.worker_id, []).append(one)
    kept = ledgers(states[0].pool)
    return states[0].model_copy(
        update={
            "gate": min((s.gate for s in states), key=_LEAST_OPEN.index),
            "policy_version": versions.pop() if len(versions) == 1 else None,
            **{name: sum(getattr(s, name) for s in states) for name in ("in_flight", "sessions", "held", "waiting")},
            "workers": [worker(found, kept.get(worker_id)) for worker_id, found in known.items()],
        }
    )


def pools(answers: Iterable[Sequence[PoolState]], ledgers: Ledgers) -> list[PoolState]:
    found: dict[str, list[PoolState]] = {}
    for states in answers:
        for state in states:
            found.setdefault(state.pool, []).append(state)
    return [pool(states, ledgers) for states in found.values()]
