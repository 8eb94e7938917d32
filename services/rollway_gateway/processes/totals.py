"""What each process captured of each engine's tokens, for the one who asks them all: ``GET /processes/totals``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from fastapi import APIRouter, Request

from rollway_gateway.gateway import Gateway
from rollway_gateway.pool import Pool

PATH = "/processes/totals"


class Totals(NamedTuple):
    """Of one worker at one process. JSON: the list of these."""

    pool: str
    worker_id: str
    url: str
    run: str
    """Since when it counts: another one has counted from 0."""
    begun: int
    """Calls ever sent there."""
    active: int
    """Calls there now."""
    captured: int
    """Tokens of calls that have ended."""
    besides: int
    """Most that may have been sampled besides, for answers that were not read to their end."""
    unbounded: int
    """Answers not read to their end for which any number may have been."""


def totals_of(pools: Iterable[Pool]) -> list[Totals]:
    """Of the workers that were asked for their counter and have one."""
    return [
        Totals(
            pool.name, w.worker_id, w.url, f"{os.getpid()} {w.account.since}", w.begun, w.active,
            w.account.captured, w.account.besides, w.account.unbounded,
        )
        for pool in pools for w in pool.workers.values() if w.account is not None
    ]  # fmt: skip


def totals_api() -> APIRouter:
    """The route; only for a process that has siblings."""
    router = APIRouter(include_in_schema=False)

    @router.get(PATH)
    async def totals(request: Request) -> list[Totals]:
        gateway: Gateway = request.app.state.gateway
        return totals_of(gateway.pools.values())

    return router
