"""Pools as JSON values and back: what a restart needs to go on serving at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rollway_gateway.pool import Pool
from rollway_gateway.worker import Worker
from rollway_wire.gateway import WorkerSpec


def pools_tree(pools: Mapping[str, Pool]) -> list[dict[str, Any]]:
    """Gate, policy version and registered workers of each, and which of these are drained; not what checks found out
    about a worker."""
    return [
        {"name": pool.name, **pool.as_tree(), "workers": [_worker_tree(w) for w in pool.workers.values()]}
        for pool in pools.values()
    ]


def _worker_tree(worker: Worker) -> dict[str, Any]:
    spec = WorkerSpec(
        url=worker.url, worker_id=worker.worker_id, model_name=worker.given_model, weight=worker.weight,
        tokenizer=worker.tokenizer, routed_experts=worker.routed_experts,
    )  # fmt: skip
    return {**spec.model_dump(), "api_path": worker.api_path, "draining": worker.draining}


def restore_pools(pools: dict[str, Pool], trees: Iterable[Mapping[str, Any]], *, retry_after_s: float) -> None:
    """Make the pools as they were; their workers are unhealthy until a check passes."""
    for tree in trees:
        pool = pools[tree["name"]] = Pool(tree["name"], retry_after_s=retry_after_s)
        pool.restore(tree)
        _put_workers(pool, tree["workers"])


def take_told(pools: dict[str, Pool], trees: Iterable[Mapping[str, Any]], *, retry_after_s: float) -> None:
    """Bring pools to what was said of them (`processes.told`): what was not said stays."""
    for tree in trees:
        pool = pools.setdefault(tree["name"], Pool(tree["name"], retry_after_s=retry_after_s))
        said = {name: tree[name] for name in ("gate", "refuses", "policy_version") if tree[name] is not None}
        pool.restore({**pool.as_tree(), **said})
        _put_workers(pool, tree["workers"])


def _put_workers(pool: Pool, trees: Iterable[Mapping[str, Any]]) -> None:
    for said in trees:
        spec = WorkerSpec(**{name: said[name] for name in WorkerSpec.model_fields if name in said})
        worker, _ = pool.put_worker(spec, api_path=said.get("api_path"))
        worker.draining = said.get("draining", False)
