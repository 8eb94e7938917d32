"""The dispatcher as its API sees it: submit, read, cancel, report. Composes what the other modules are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.budgets import Budgets
from rollway_dispatcher.clock import Clock
from rollway_dispatcher.engine import Engine, running
from rollway_dispatcher.event_queue import running_event_queue
from rollway_dispatcher.executor import Executor
from rollway_dispatcher.failure_reasons import reasons
from rollway_dispatcher.gateway import GatewayClient, open_gateway
from rollway_dispatcher.invocation import report_keys
from rollway_dispatcher.lookout import Lookout
from rollway_dispatcher.moves import Patience
from rollway_dispatcher.order import accept, fingerprint
from rollway_dispatcher.pressure import Marks, PressureWatch
from rollway_dispatcher.results_page import Found
from rollway_dispatcher.rollout import fresh_batch
from rollway_dispatcher.runtimes.registry import open_runtimes
from rollway_dispatcher.schedule import Scheduler
from rollway_dispatcher.schema import view_of
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.state import joined, open_state, pace_of
from rollway_dispatcher.step import Arrived, CancelBatch, CancelRollout
from rollway_dispatcher.store import Store
from rollway_dispatcher.webhook_signature import check_target
from rollway_dispatcher.webhooks import Webhooks, running_webhooks
from rollway_kit.keys import KeyRefused
from rollway_kit.object_store import ObjectStore, open_object_store
from rollway_wire.batch import (
    TERMINAL,
    BatchRequest,
    BatchState,
    BatchStatus,
    FailureReason,
    RolloutView,
    SessionView,
)
from rollway_wire.ids import new_batch_id, new_session_id
from rollway_wire.problems import RollwayError, Unauthorized, Unavailable
from rollway_wire.rollout import Report

if TYPE_CHECKING:
    from rollway_dispatcher.fleet import Fleet

PAGE_BYTES = 64 * 2**20
"""A page of results ends before it grows past this, unless its first result is larger."""


class Dispatcher:
    """Made by `open_dispatcher`."""

    def __init__(
        self, *, settings: DispatcherSettings, store: Store, objects: ObjectStore,
        gateway: GatewayClient | None, engine: Engine, bell: Bell, clock: Clock, fleet: Fleet | None = None,
        webhooks: Webhooks | None = None,
    ) -> None:  # fmt: skip
        self._fleet = fleet
        self._webhooks = webhooks
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

    def lag_p99_ms(self) -> float | None:
        """Milliseconds from news to what follows from it; None: nothing happened lately."""
        return self._engine.lag_p99_ms()

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
        if request.webhook is not None:
            check_target(request.webhook.url, self._settings.webhook_hosts)
        order = accept(request, new_batch_id(), self._settings)
        await self._check_reachable(order.s3_bucket, captured=order.capture is not None)
        batch = fresh_batch(order, request.groups, self._clock.now())
        batch_id, created = await self._store.create_batch(
            batch, request.groups, key=key, fingerprint=print_, webhook=request.webhook
        )
        if created and request.webhook is not None and self._webhooks is not None:
            self._webhooks.begin(batch_id)
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

    async def batches(self, limit: int, before: int | None) -> tuple[list[BatchStatus], int | None]:
        """The newest batches, newest first, and what ``before`` gives the next ones; None at the end."""
        found = await self._store.batch_ids(limit + 1, before)
        more = found[limit - 1][0] if len(found) > limit else None
        return [await self._store.status(batch_id) for _, batch_id in found[:limit]], more

    async def rollouts(self, batch_id: str, first: int, limit: int) -> tuple[list[RolloutView], int | None]:
        """The rollouts from the ``first``-th on, and where the next ones begin; None at the end. Raises NotFound."""
        total = (await self._store.status(batch_id)).total
        views = await self._store.views(batch_id, first, limit)
        return views, first + limit if first + limit < total else None

    async def failures(self, batch_id: str) -> list[FailureReason]:
        """Raises NotFound."""
        await self._store.status(batch_id)
        return reasons(await self._store.failures(batch_id))

    async def results(
        self, batch_id: str, *, cursor: int, limit: int, wait_s: float, trajectories: bool, max_bytes: int | None
    ) -> Found:
        """What finished after ``cursor``; waits up to ``wait_s`` seconds for the first of it.

        Raises:
            NotFound: no such batch.
            Unprocessable: a cursor beyond the last result.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            ring = self._bell.listen(batch_id)
            try:
                found, there, total = await self._store.results(
                    batch_id, cursor, limit, max_bytes or PAGE_BYTES, trajectories=trajectories
                )
                left = deadline - loop.time()
                if found or there == total or left <= 0:
                    return Found(found, cursor, total)
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
                await self._tell(CancelBatch(batch_id, "cancelled by request"))
                await asyncio.wait([ring], timeout=5)
            finally:
                self._bell.ignore(batch_id, ring)

    async def _tell(self, news: CancelBatch | CancelRollout) -> None:
        """Here, or where the batch is worked on."""
        if self._fleet is not None and not self._engine.owns(news.batch_id):
            await self._fleet.pass_on(news)
        else:
            self._engine.tell(news)

    async def cancel_rollout(self, batch_id: str, group_id: str, index: int) -> RolloutView:
        """Cancel one rollout; a finished one is left as it is. Returns when the cancellation is on disk.

        Raises:
            NotFound: no such rollout.
            Unavailable: the state cannot be written.
        """
        while True:
            ring = self._bell.listen(batch_id)
            try:
                rollout = await self._store.rollout(batch_id, group_id, index)
                if rollout.state in TERMINAL:
                    return view_of(rollout)
                self.check()
                await self._tell(CancelRollout(batch_id, rollout.ordinal, "cancelled by request"))
                await asyncio.wait([ring], timeout=5)
            finally:
                self._bell.ignore(batch_id, ring)

    async def sessions(self) -> list[SessionView]:
        """Every session that a runtime was asked for and has not confirmed to be gone."""
        return await self._store.sessions()

    async def stop_sessions(self, session_ids: list[str] | None) -> list[SessionView]:
        """Stop these, or None: all, and whatever would start others. Those that are still there, being stopped.

        Raises:
            Unavailable: the state cannot be written.
        """
        if session_ids is None:
            for batch_id in await self._store.running_batches():
                await self.cancel(batch_id)
        else:
            asked = frozenset(session_ids)
            for view in await self._store.sessions():
                if view.session_id in asked and view.group_id is not None and view.index is not None:
                    await self.cancel_rollout(view.batch_id, view.group_id, view.index)
        return [v for v in await self._store.sessions() if session_ids is None or v.session_id in session_ids]

    def report(self, report: Report, bearer: str) -> None:
        """Take an agent's push.

        Raises:
            Unauthorized: the key is not this session's to report with.
        """
        try:
            allowed = report_keys(self._store.secret).read(bearer, "report")
        except KeyRefused as e:
            raise Unauthorized(f"the bearer key is refused: {e}") from None
        if allowed != report.session_id:
            raise Unauthorized("the bearer key does not belong to this session")
        if self._fleet is not None and not self._engine.knows(report.session_id):
            self._fleet.pass_on_report(report)
        else:
            self._engine.report(report)


def _pressure_watches(
    settings: DispatcherSettings, gateway: GatewayClient, scheduler: Scheduler, engine: Engine
) -> list[PressureWatch]:
    if settings.pressure_interval_s == 0:
        return []
    marks = Marks(settings.pressure_waiting, settings.pressure_kv, 0.9 * settings.pressure_kv)
    return [PressureWatch(gateway, marks, settings.pressure_interval_s, scheduler.pools, engine.tell)]


@asynccontextmanager
async def open_dispatcher(
    settings: DispatcherSettings, on_crash: Callable[[], None] = lambda: None
) -> AsyncIterator[Dispatcher]:
    """Everything the service is but HTTP. Opened in this order, closed in reverse:

    state, S3, gateway, runtimes, engine, fleet, queue, webhooks. Engine and what follows it go first, so no I/O is cut
    off under a running effect.

    Raises:
        StateUnusable: the state file or the database cannot be used.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_state(settings))
        objects = await stack.enter_async_context(
            open_object_store(endpoint_url=settings.s3_endpoint_url, region=settings.region)
        )
        gateway = None
        if settings.gateway_urls:
            key = settings.gateway_api_key.get_secret_value() if settings.gateway_api_key else None
            gateway = await stack.enter_async_context(open_gateway(settings.gateway_urls, key))
        folder = settings.state_path.with_name(settings.state_path.name + ".agents")
        runtimes = await stack.enter_async_context(
            open_runtimes(folder, settings.s3_endpoint_url, keep_processes=settings.keep_processes, pace=pace_of(store))
        )
        clock, bell = Clock(), Bell()
        patience = Patience(settings.heartbeat_window_s, settings.throttle_patience_s)
        scheduler = Scheduler(Budgets(settings.max_concurrent), patience, new_session_id)
        engine = Engine(scheduler, store, bell, clock, settings.keep_results_s)
        executor = Executor(
            settings=settings, objects=objects, gateway=gateway, runtimes=runtimes, payloads=store, clock=clock,
            tell=engine.tell,
        )  # fmt: skip
        lookout = Lookout(objects, settings.poll_interval_s, engine.tell, engine.announced)
        watches = [] if gateway is None else _pressure_watches(settings, gateway, scheduler, engine)
        await stack.enter_async_context(running(engine, executor, lookout, on_crash, watches))
        fleet = await stack.enter_async_context(joined(settings, store, engine, bell, runtimes.look_again))
        await stack.enter_async_context(running_event_queue(settings, engine, fleet))
        webhooks = None
        if settings.webhook_secret is not None:
            secret = settings.webhook_secret.get_secret_value()
            look_s = None if fleet is None else settings.lease_s / 3
            webhooks = await stack.enter_async_context(running_webhooks(store, bell, clock, secret, look_s))
        yield Dispatcher(
            settings=settings, store=store, objects=objects, gateway=gateway, engine=engine, bell=bell, clock=clock,
            fleet=fleet, webhooks=webhooks,
        )  # fmt: skip
