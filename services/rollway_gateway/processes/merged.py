"""What several processes say of the same thing, as one answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollway_wire.gateway import PoolState, WorkerLedger, WorkerState

_LEAST_OPEN = ("fenced", "paused", "open")


def worker(states: Sequence[WorkerState]) -> WorkerState:
    """Healthy where it is everywhere, exact where it is everywhere; its calls are those of all."""
    weakest = next((s for s in states if not s.healthy), next((s for s in states if s.mode != "exact"), states[0]))
    active = sum(s.active_requests for s in states)
    return weakest.model_copy(update={"active_requests": active, "ledger": _ledger([s.ledger for s in states])})


def _ledger(ledgers: Sequence[WorkerLedger | None]) -> WorkerLedger | None:
    """What all captured. An engine counts for all of them at once, so no one process's comparison says anything."""
    known = [ledger for ledger in ledgers if ledger is not None]
    if len(known) < len(ledgers):
        return None
    since, captured = max(k.since for k in known), sum(k.captured for k in known)
    return WorkerLedger(since=since, captured=captured, engine=None, difference=None, closes=None, uncertain=None)


def pool(states: Sequence[PoolState]) -> PoolState:
    """Open where it is open everywhere; counts are sums, a worker is one however many processes know it."""
    versions = {s.policy_version for s in states}
    known: dict[str, list[WorkerState]] = {}
    for state in states:
        for one in state.workers:
            known.setdefault(one.worker_id, []).append(one)
    return states[0].model_copy(
        update={
            "gate": min((s.gate for s in states), key=_LEAST_OPEN.index),
            "policy_version": versions.pop() if len(versions) == 1 else None,
            "in_flight": sum(s.in_flight for s in states),
            "sessions": sum(s.sessions for s in states),
            "held": sum(s.held for s in states),
            "workers": [worker(found) for found in known.values()],
        }
    )


def pools(answers: Iterable[Sequence[PoolState]]) -> list[PoolState]:
    found: dict[str, list[PoolState]] = {}
    for states in answers:
        for state in states:
            found.setdefault(state.pool, []).append(state)
    return [pool(states) for states in found.values()]
