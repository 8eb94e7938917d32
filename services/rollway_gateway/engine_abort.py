"""Telling workers to end generations and hand back what they have, which closing the connection would throw away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp
import orjson
import structlog

from rollway_gateway.worker import Worker

log = structlog.get_logger()

_ROUTES = ("/inference/v1/abort_requests", "/abort_requests")
"""vLLM has the first with --enable-scale-out, the second with VLLM_SERVER_DEV_MODE=1."""


async def abort_generations(
    client: aiohttp.ClientSession, upstreams: Iterable[tuple[Worker, str] | None], timeout_s: float
) -> None:
    """Ask each worker to abort requests by id. One that has no route for it, or fails, is logged and left to drain."""
    by_worker: dict[Worker, list[str]] = {}
    for worker, request_id in filter(None, upstreams):
        names = (f"chatcmpl-{request_id}", f"cmpl-{request_id}", f"cmpl-{request_id}-0")
        by_worker.setdefault(worker, []).extend(names)
    async with asyncio.TaskGroup() as group:
        for worker, ids in by_worker.items():
            group.create_task(_abort(client, worker, ids, timeout_s))


async def _abort(client: aiohttp.ClientSession, worker: Worker, ids: list[str], timeout_s: float) -> None:
    body, headers = orjson.dumps({"request_ids": ids}), {"content-type": "application/json"}
    status = 0
    try:
        async with asyncio.timeout(timeout_s):
            for route in _ROUTES:
                async with client.post(worker.url + route, data=body, headers=headers, allow_redirects=False) as answer:
                    status = answer.status
                if status == 200:
                    return
        detail = f"status {status}"
    except (aiohttp.ClientError, OSError) as e:  # TimeoutError is an OSError
        detail = f"{type(e).__name__}: {e}"
    log.warning("abort_not_possible", worker=worker.worker_id, detail=detail)
