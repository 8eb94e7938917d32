"""How much an engine has to do, out of its /metrics (vLLM's names, 0.28 to 0.32)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp

from rollway_gateway.engine_count import metric
from rollway_gateway.worker import Worker
from rollway_wire.gateway import EngineLoad

_RUNNING = metric(rb"vllm:num_requests_running")
_WAITING = metric(rb"vllm:num_requests_waiting")
_KV_USAGE = metric(rb"vllm:kv_cache_usage_perc")


def read_load(worker_id: str, metrics: bytes) -> EngineLoad | None:
    """Summed over a server's engines, and the fullest one's cache. None: it does not say."""
    try:
        running, waiting, kv = ([float(n) for n in m.findall(metrics)] for m in (_RUNNING, _WAITING, _KV_USAGE))
        if not running or not waiting:
            return None
        usage = max(kv, default=None)
        return EngineLoad(worker_id=worker_id, running=int(sum(running)), waiting=int(sum(waiting)), kv_usage=usage)
    except (ValueError, OverflowError):  # not a number, NaN, infinite
        return None


async def loads_of(client: aiohttp.ClientSession, workers: Iterable[Worker], within_s: float) -> list[EngineLoad]:
    """Of the healthy workers that say it in time."""

    async def ask(worker: Worker) -> EngineLoad | None:
        try:
            async with (
                asyncio.timeout(within_s),
                client.get(worker.url + "/metrics", allow_redirects=False) as response,
            ):
                return read_load(worker.worker_id, await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            return None

    asked = await asyncio.gather(*(ask(w) for w in workers if w.healthy))
    return [load for load in asked if load is not None]
