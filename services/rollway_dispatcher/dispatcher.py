"""The dispatcher as its API sees it: submit, read, cancel, report. Composes what the other modules are."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.clock import Clock
from rollway_dispatcher.engine import Engine, running
from rollway_dispatcher.executor import Executor
from rollway_dispatcher.gateway import GatewayClient, open_gateway
from rollway_dispatcher.invocation import report_key
from rollway_dispatcher.lookout import Lookout
from rollway_dispatcher.order import accept, fingerprint
from rollway_dispatcher.results_page import page
from rollway_dispatcher.rollout import fresh_batch
from rollway_dispatcher.runtimes.registry import open_runtimes
from rollway_dispatcher.schedule import Patience, Scheduler
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.state_file import open_store
from rollway_dispatcher.step import Arrived, CancelBatch
from rollway_dispatcher.store import SqliteStore
from rollway_kit.object_store import ObjectStore, open_object_store
from rollway_wire.batch import BatchRequest, BatchState, BatchStatus, RolloutView
from rollway_wire.ids import new_batch_id, new_session_id
from rollway_wire.problems import RollwayError, Unauthorized, Unavailable
from rollway_wire.rollout import Report

PAGE_BYTES = 64 * 2**20
"""A page of results ends before it grows past this, unless its first result is larger."""


class Dispatcher:
    """Made by `open_dispatcher`."""

    def __init__(
        self, *, settings: DispatcherSettings, store: SqliteStore, objects: ObjectStore,
        gateway: GatewayClient | None, engine: Engine, bell: Bell, clock: Clock,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._store = store
        self._objects = objects
        self._gateway = gateway
        self._engine = engine
        self._bell = bell
        self._clock = clock

    def check(self) -> None:
        """Raise `Unavailable` while nothing moves."""
        self._engine.check()

    async def submit(self, request: BatchRequest, key: str | None) -> tuple[BatchStatus, bool]:
        """Take a batch; (its status, True), or the status of the batch this key already stands for and False.

        Raises:
            Conflict: the key was used with another body.
            Forbidden, Unprocessable: see `rollway_dispatcher.order.accept`.
            Unavailable: the bucket or the gateway cannot be used now, or the state cannot be written.
        """
        self.check()
        print_ = fingerprint(request)
        if key is not None and (known := await self._store.known_batch(key, print_)) is not None:
            return await self._store.status(known), False
        order = accept(request, new_batch_id(), self._settings)
        await self._check_reachable(order.s3_bucket, captured=order.capture is not None)
        batch = fresh_batch(order, request.groups, self._clock.now())
        batch_id, created = await self._store.create_batch(batch, request.groups, key=key, fingerprint=print_)
        if created:
            self._engine.tell(Arrived(batch))
        return await self._store.status(batch_id), created

    async def _check_reachable(self, bucket: str, *, captured: bool) -> None:
        """Better now than a thousand failures later.

        Raises:
            Unavailable: naming what cannot be reached.
        """

        async def check_bucket() -> None:
            try:
                await self._objects.check_bucket(bucket)
            except RollwayError as e:
                raise Unavailable(f"results cannot be saved: {e.detail}", retry_after_s=5) from e

        checks = [check_bucket()]
        if captured and self._gateway is not None:
            checks.append(self._gateway.check())
        for outcome in await asyncio.gather(*checks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def status(self, batch_id: str) -> BatchStatus:
        """Raises NotFound."""
        return await self._store.status(batch_id)

    async def batches(self, limit: int) -> list[BatchStatus]:
        """The newest batches, newest first."""
        return [await self._store.status(b) for b in await self._store.batch_ids(limit)]

    async def rollouts(self, batch_id: str) -> list[RolloutView]:
        """Raises NotFound."""
        await self._store.status(batch_id)
        return await self._store.views(batch_id)

    async def results(self, batch_id: str, *, cursor: int, limit: int, wait_s: float, packed: bool) -> bytes:
        """An encoded page; waits up to ``wait_s`` seconds for its first result.

        Raises:
            NotFound: no such batch.
            Unprocessable: a cursor beyond the last result.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            ring = self._bell.listen(batch_id)
            try:
                found, there, total = await self._store.results(batch_id, cursor, limit, PAGE_BYTES)
                left = deadline - loop.time()
                if found or there == total or left <= 0:
                    return await asyncio.to_thread(page, found, cursor=cursor, total=total, packed=packed)
                await asyncio.wait([ring], timeout=left)
            finally:
                self._bell.ignore(batch_id, ring)

    async def cancel(self, batch_id: str) -> BatchStatus:
        """Cancel what is not finished; a finished batch is left as it is. Returns when the cancellation is on disk.

        Raises:
            NotFound: no such batch.
            Unavailable: the state cannot be written.
        """
        while True:
            ring = self._bell.listen(batch_id)
            try:
                status = await self._store.status(batch_id)
                if status.state is not BatchState.RUNNING:
                    return status
                self.check()
                self._engine.tell(CancelBatch(batch_id, "cancelled by request"))
                await asyncio.wait([ring], timeout=5)
            finally:
                self._bell.ignore(batch_id, ring)

    def report(self, report: Report, bearer: str) -> None:
        """Take an agent's push.

        Raises:
            Unauthorized: the key is not this session's.
        """
        if not hmac.compare_digest(bearer.encode(), report_key(self._store.secret, report.session_id).encode()):
            raise Unauthorized("the bearer key does not belong to this session")
        self._engine.report(report)


@asynccontextmanager
async def open_dispatcher(
    settings: DispatcherSettings, on_crash: Callable[[], None] = lambda: None
) -> AsyncIterator[Dispatcher]:
    """Everything the service is but HTTP. Opened in this order, closed in reverse:

    state file, S3, gateway, runtimes, engine. The engine goes first, so no I/O is cut off under a running effect.

    Raises:
        StateUnusable: the state file cannot be used.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings.state_path))
        objects = await stack.enter_async_context(
            open_object_store(endpoint_url=settings.s3_endpoint_url, region=settings.region)
        )
        gateway = None
        if settings.gateway_url is not None:
            key = settings.gateway_api_key.get_secret_value() if settings.gateway_api_key else None
            gateway = await stack.enter_async_context(open_gateway(settings.gateway_url, key))
        folder = settings.state_path.with_name(settings.state_path.name + ".agents")
        runtimes = await stack.enter_async_context(
            open_runtimes(folder, settings.s3_endpoint_url, keep_processes=settings.keep_processes)
        )
        clock, bell = Clock(), Bell()
        patience = Patience(settings.heartbeat_window_s, settings.throttle_patience_s)
        scheduler = Scheduler(Budgets(settings.max_concurrent), patience, new_session_id)
        engine = Engine(scheduler, store, bell, clock, settings.keep_results_s)
        executor = Executor(
            settings=settings, objects=objects, gateway=gateway, runtimes=runtimes, payloads=store, clock=clock,
            tell=engine.tell,
        )  # fmt: skip
        lookout = Lookout(objects, settings.poll_interval_s, engine.tell)
        await stack.enter_async_context(running(engine, executor, lookout, on_crash))
        yield Dispatcher(
            settings=settings, store=store, objects=objects, gateway=gateway, engine=engine, bell=bell, clock=clock
        )
