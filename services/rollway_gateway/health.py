"""Watching workers: a check when one is registered, and all of them at an interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import aiohttp
import orjson
import structlog

from rollway_gateway.exact.probe import Prober
from rollway_gateway.exact.standing import UNKNOWN
from rollway_gateway.reconcile import look_at, reconcile
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.worker import Worker

log = structlog.get_logger()


class HealthWatch:
    """`check` asks one worker; `run` goes round for as long as the gateway lives."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        settings: GatewaySettings,
        workers: Callable[[], Iterable[Worker]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            changed: called after each check.
        """
        self._changed = changed
        self._client = client
        self._prober = Prober(client, settings)
        self._settings = settings
        self._workers = workers
        self._checking: set[Worker] = set()

    async def run(self) -> None:
        while True:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers():
                    if worker in self._checking:  # just registered: to find out what it can do takes a while
                        continue
                    group.create_task(self.check(worker))
            await asyncio.sleep(self._settings.health_interval_s)

    async def check(self, worker: Worker) -> None:
        """One check: GET /health; for a worker that was not healthy its models too, and what it can do."""
        was = worker.healthy
        self._checking.add(worker)
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                await self._ask(worker)
            if not was or worker.standing is UNKNOWN:
                worker.standing = await self._prober.examine(worker)
                if self._settings.mode == "exact" and worker.standing.exact is None:
                    raise ValueError(f"exact mode is set, and it cannot be: {worker.standing.why}")
            if not was:  # before the first call
                await self._reconcile(worker)
            worker.check_passed(now=time.monotonic())
            worker.breaker.checked(now=time.monotonic(), open_s=self._settings.breaker_open_s)
            if was and (worker.account is None or worker.account.stale):
                await self._reconcile(worker)
        except (aiohttp.ClientError, OSError, ValueError) as e:  # TimeoutError is an OSError
            worker.check_failed(
                f"{type(e).__name__}: {e}" if str(e) else type(e).__name__,
                now=time.monotonic(),
                limit=self._settings.health_failures,
                alive_window_s=self._settings.alive_window_s,
            )
            self._hang_up(worker)
        finally:
            self._checking.discard(worker)
            self._changed()
        if worker.healthy != was:
            log.info("worker_health", worker=worker.worker_id, healthy=worker.healthy, detail=worker.detail)

    def _hang_up(self, worker: Worker) -> None:
        """Give up the calls at a worker that has neither passed a check nor sent a byte for too long."""
        quiet_s = time.monotonic() - max(worker.bytes_at, worker.passed_at)
        if worker.waits and not worker.healthy and quiet_s > self._settings.hang_s:
            log.warning("worker_hangs", worker=worker.worker_id, calls=len(worker.waits), quiet_s=round(quiet_s))
            worker.hang_up()

    async def _reconcile(self, worker: Worker) -> None:
        if self._settings.process is None or worker.account is None:  # of several processes the supervisor compares
            await reconcile(self._client, worker, self._settings.health_timeout_s, look_at(worker))

    async def _ask(self, worker: Worker) -> None:
        async with self._client.get(worker.url + "/health", allow_redirects=False) as response:
            if response.status not in (200, 404):  # a server without the route is judged by its models
                raise ValueError(f"/health answered {response.status}")
            has_health = response.status == 200
        if not worker.healthy or not has_health or not worker.models:
            async with self._client.get(worker.api_url + "/models", allow_redirects=False) as response:
                if response.status != 200:
                    raise ValueError(f"{worker.api_path}/models answered {response.status}")
                _take_models(worker, await response.read())


def _take_models(worker: Worker, body: bytes) -> None:
    """Served names, base models before their adapters; folder and context of the first base.

    Raises:
        ValueError: not a list of models, or an empty one.
    """
    try:
        entries = sorted(orjson.loads(body)["data"], key=lambda m: m.get("parent") is not None)
        names = tuple(str(m["id"]) for m in entries)
        root, context = (entries[0].get(key) for key in ("root", "max_model_len")) if entries else (None, None)
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"not a list of models: {body[:200]!r}") from e
    if not names:
        raise ValueError("serves no model")
    worker.models = names
    worker.root = root if isinstance(root, str) else None
    worker.context = context if isinstance(context, int) else None
