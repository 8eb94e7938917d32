"""The loop: take the news, step the scheduler, write the step, wake those who wait, do what the step asks.

Nothing of a step begins before the step is on disk. While one step is being written the next one's news gather, so
under load many rollouts share one commit. When the disk fails, the engine holds the step and tries again: nothing is
done that is not written. All I/O runs in one TaskGroup, ended with the engine; rollouts go on and the next start takes
them up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.clock import Clock
from rollway_dispatcher.database import LeaseLost, StoreTrouble
from rollway_dispatcher.executor import Executor
from rollway_dispatcher.lag import Lag
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.lookout import Announced, Lookout
from rollway_dispatcher.order import Order, batch_of
from rollway_dispatcher.pressure import PressureWatch
from rollway_dispatcher.rollout import Batch
from rollway_dispatcher.schedule import Scheduler
from rollway_dispatcher.step import (
    Collect,
    Effect,
    Happened,
    Heard,
    News,
    Poll,
    Published,
    Retried,
    Start,
    Step,
    Stop,
    Watch,
)
from rollway_dispatcher.store import Store
from rollway_wire.ids import result_key, session_id_of
from rollway_wire.problems import ContractViolation, Unavailable
from rollway_wire.rollout import Report

log = structlog.get_logger()

DISK_RETRY_S = 1.0
PURGE_EVERY_S = 3600.0
IDLE_S = 60.0
LISTENS_EVERY_S = 1.0
LAUNCHED_AT_ONCE = 8
"""Effects begun in one turn of the loop: the first part of each is a millisecond of work, and agents wait beside it."""


class Engine:
    """Owns the scheduler and every task that works for it. Made by `running`."""

    def __init__(self, scheduler: Scheduler, store: Store, bell: Bell, clock: Clock, keep_results_s: float) -> None:
        self._scheduler = scheduler
        self._store = store
        self._bell = bell
        self._clock = clock
        self._keep_results_s = keep_results_s
        # Bounded by what is under way: each effect brings back one piece of news, each API call one.
        self._news: deque[tuple[News, float]] = deque()
        self._told_at: list[float] = []
        """When the news of the present step were told."""
        self._wake = asyncio.Event()
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._orders: dict[str, Order] = {}
        self._broken: set[str] = set()
        """Batches under way whose contract error has been logged."""
        self._taken: list[tuple[Batch, list[Stop]]] = []
        """Batches taken over from another dispatcher, not yet taken up."""
        self.announced = Announced()
        self.trouble: str | None = None
        """Why nothing moves; None: all is well."""
        self._lag = Lag()

    def tell(self, news: News) -> None:
        """Take in news, at once; it is written and acted on in the next step."""
        self._news.append((news, self._clock.now()))
        self._wake.set()

    def owns(self, batch_id: str) -> bool:
        """Whether the batch is worked on here."""
        return batch_id in self._scheduler.batches

    def knows(self, session_id: str) -> bool:
        return session_id in self._scheduler.sessions

    @property
    def known(self) -> Container[str]:
        """Batches that need not be taken over."""
        return self._scheduler.known

    def take_over(self, batch: Batch, stops: list[Stop]) -> None:
        """Work on from where another dispatcher left a batch."""
        self._taken.append((batch, stops))
        self._wake.set()

    def report(self, report: Report) -> None:
        """Take in an agent's push. Of heartbeats only the first is news; the others just show life."""
        first = self._scheduler.heard(report.session_id, self._clock.now())
        if first:
            self.tell(Heard(report.session_id))
        if report.event == "done":
            self.tell(Happened(report.session_id, Trigger.NOTICED))

    def lag_p99_ms(self) -> float | None:
        """Of the last ten seconds that are over (`lag`); None: nothing happened."""
        found = self._lag.quantile(0.99, self._clock.now())
        return None if found is None else round(1e3 * found, 1)

    def saved(self, bucket: str, key: str) -> bool:
        """Take in a queue's word that an object was made; whether it is one of a batch that is worked on here."""
        batch = self._scheduler.batches.get(batch_of(key) or "")
        if batch is None or bucket != batch.order.s3_bucket or not key.startswith(f"{batch.order.exp_id}/"):
            return False
        self.announced.heard(batch.order)
        session_id = session_id_of(key) or ""
        r = self._scheduler.sessions.get(session_id)
        if r is not None and key == result_key(batch.order.exp_id, r.group_id, session_id):
            self.tell(Happened(session_id, Trigger.NOTICED))
        return True

    def check(self) -> None:
        """Raise `Unavailable` while nothing moves."""
        if self.trouble is not None:
            raise Unavailable(f"the dispatcher makes no progress: {self.trouble}", retry_after_s=5)

    async def run(self, executor: Executor, lookout: Lookout, watches: Sequence[PressureWatch] = ()) -> None:
        """Until cancelled.

        Raises:
            ExceptionGroup: a bug in the loop itself.
        """
        async with asyncio.TaskGroup() as group:
            launcher = _Launcher(group, executor, lookout, self._scheduler, self._tasks, self._orders)
            group.create_task(self._purge(), name="purge")
            group.create_task(self._listen(), name="listen")
            for watch in watches:
                group.create_task(watch.run(), name="pressure")
            await self._resume(launcher)
            while True:
                step = await self._next_step()
                self._take_up(launcher)
                if step.writes:
                    step = await self._write(step, launcher)
                    self._announce(step)
                for n, effect in enumerate(step.effects, 1):
                    launcher.launch(effect)
                    if n % LAUNCHED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                # Behind the first turn of each task just made.
                asyncio.get_running_loop().call_soon(self._note_lag, self._told_at)
                self._forget_finished()

    async def _resume(self, launcher: _Launcher) -> None:
        effects: list[Effect] = []
        for batch, stops in await self._found():
            self._orders[batch.batch_id] = batch.order
            effects += self._scheduler.adopt(batch, stops, self._clock.now())
        if effects:
            log.info("resumed", batches=len(self._orders), effects=len(effects))
            self._wake.set()  # as in `_take_up`
        for effect in effects:
            launcher.launch(effect)

    async def _found(self) -> list[tuple[Batch, list[Stop]]]:
        """What was left unfinished; waits while the state cannot be read."""
        while True:
            try:
                found = await self._store.unfinished()
            except StoreTrouble as e:
                self.trouble = f"state cannot be read: {e}"
                log.error("resume_failed", why=str(e), retry_in_s=DISK_RETRY_S)  # noqa: TRY400 - the disk's, not ours
                await asyncio.sleep(DISK_RETRY_S)
            else:
                self.trouble = None
                return found

    def _take_up(self, launcher: _Launcher) -> None:
        taken, self._taken = self._taken, []
        for batch, stops in taken:
            self._orders[batch.batch_id] = batch.order
            for effect in self._scheduler.adopt(batch, stops, self._clock.now()):
                launcher.launch(effect)
        if taken:
            self._wake.set()  # what waits in them is admitted by a step, and nothing else may ask for one

    async def _next_step(self) -> Step:
        """Wait for news or for the time at which something is due; then one step with all of it."""
        now = self._clock.now()
        if not self._news:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(IDLE_S, max(0.0, self._scheduler.wake_at(now) - now))):
                    await self._wake.wait()
        self._wake.clear()
        now = self._clock.now()
        self._scheduler.listens(now)  # after a pause of ours the other that says so may come second
        self._told_at = [told_at for _, told_at in self._news]
        while self._news:
            news, _ = self._news.popleft()
            try:
                self._scheduler.take(news, now)
            except ContractViolation as e:
                log.error("impossible_news", news=repr(news)[:300], why=e.detail)  # noqa: TRY400 - the trace says no more
        return self._scheduler.step(now)

    async def _write(self, step: Step, launcher: _Launcher) -> Step:
        """What of the step is written: without the batches that another dispatcher has taken over. Why an attempt is
        followed by another is logged first, so that no kill can hide it."""
        for retried in step.retried:
            _log_retry(retried)
        while True:
            try:
                await self._store.commit(step)
            except LeaseLost as e:
                log.warning("batches_lost", batch_ids=sorted(e.batch_ids), why="another dispatcher took them over")
                for batch_id in e.batch_ids:
                    launcher.end(batch_id, self._scheduler.drop(batch_id))
                step = step.without(e.batch_ids)
            except StoreTrouble as e:
                self.trouble = f"state cannot be written: {e}"
                log.error("commit_failed", why=str(e), retry_in_s=DISK_RETRY_S)  # noqa: TRY400 - the disk's, not ours
                await asyncio.sleep(DISK_RETRY_S)
            else:
                self.trouble = None
                return step

    def _note_lag(self, told_at: list[float]) -> None:
        now = self._clock.now()
        for at in told_at:
            self._lag.note(now - at, now)

    def _announce(self, step: Step) -> None:
        for published in step.published:
            _log_result(published)
        for batch in step.batches.values():
            if batch.contract_error is not None and batch.batch_id not in self._broken:
                self._broken.add(batch.batch_id)
                log.error("batch_failed", batch_id=batch.batch_id, why=batch.contract_error)
            if batch.finished_at is not None:
                log.info("batch_finished", batch_id=batch.batch_id, results=batch.published, usable=batch.usable)
        self._bell.ring({p.rollout.batch_id for p in step.published} | step.batches.keys())

    def _forget_finished(self) -> None:
        for batch_id in [b for b in self._orders if b not in self._scheduler.batches]:
            del self._orders[batch_id]
            self._broken.discard(batch_id)

    async def _listen(self) -> None:
        while True:
            self._scheduler.listens(self._clock.now())
            await asyncio.sleep(LISTENS_EVERY_S)

    async def _purge(self) -> None:
        while True:
            try:
                gone = await self._store.purge(self._clock.now() - self._keep_results_s)
            except StoreTrouble as e:
                log.warning("purge_failed", why=str(e))
            else:
                if gone:
                    log.info("purged", batches=gone)
            await asyncio.sleep(PURGE_EVERY_S)


class _Launcher:
    """Makes tasks of effects. A session's tasks are known by kind, so that a stop ends the others."""

    def __init__(
        self, group: asyncio.TaskGroup, executor: Executor, lookout: Lookout, scheduler: Scheduler,
        tasks: dict[tuple[str, str], asyncio.Task[None]], orders: dict[str, Order],
    ) -> None:  # fmt: skip
        self._group = group
        self._executor = executor
        self._lookout = lookout
        self._scheduler = scheduler
        self._tasks = tasks
        self._orders = orders

    def launch(self, effect: Effect) -> None:
        if isinstance(effect, Poll):
            batch = self._scheduler.batches.get(effect.batch_id)
            if batch is not None:
                self._orders[effect.batch_id] = batch.order
                self._spawn("poll", effect.batch_id, self._lookout.keep(batch))
            return
        order = self._orders[effect.batch_id]
        match effect:
            case Start():
                self._spawn("start", effect.session_id, self._executor.start(effect, order))
            case Watch():
                self._spawn("watch", effect.session_id, self._executor.watch(effect, order))
            case Collect():
                self._cancel("watch", effect.session_id)
                self._spawn("collect", effect.session_id, self._executor.collect(effect, order))
            case Stop():
                self._cancel("watch", effect.session_id)
                self._cancel("collect", effect.session_id)
                if self._executor.may_interrupt_start(effect.session_id):
                    self._cancel("start", effect.session_id)
                self._spawn("stop", effect.session_id, self._executor.stop(effect, order))

    def end(self, batch_id: str, session_ids: list[str]) -> None:
        """Of a batch that is no longer ours."""
        self._cancel("poll", batch_id)
        for session_id in session_ids:
            for kind in ("start", "watch", "collect", "stop"):
                self._cancel(kind, session_id)

    def _spawn(self, kind: str, ident: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work, name=f"{kind} {ident}")
        self._tasks[kind, ident] = task

        def forget(done: asyncio.Task[None]) -> None:
            if self._tasks.get((kind, ident)) is done:
                del self._tasks[kind, ident]

        task.add_done_callback(forget)

    def _cancel(self, kind: str, ident: str) -> None:
        task = self._tasks.get((kind, ident))
        if task is not None:
            task.cancel()


def _log_retry(retried: Retried) -> None:
    log.info(
        "attempt_failed",
        rollout_id=retried.rollout_id,
        session_id=retried.session_id,
        attempt=retried.attempt,
        failure=retried.failure.type.value,
        why=retried.failure.message[:300],
    )


def _log_result(published: Published) -> None:
    r = published.rollout
    log.info(
        "rollout_finished",
        rollout_id=r.rollout_id,
        session_id=r.session_id,
        state=r.state.value,
        attempt=r.attempt,
        failure=r.failure.type.value if r.failure else None,
        why=r.failure.message[:300] if r.failure else None,
        seconds=round(r.finished_at - r.admitted_at, 3) if r.finished_at and r.admitted_at else None,
    )


@asynccontextmanager
async def running(
    engine: Engine,
    executor: Executor,
    lookout: Lookout,
    on_crash: Callable[[], None],
    watches: Sequence[PressureWatch] = (),
) -> AsyncIterator[None]:
    """Run the engine for as long as the block. A crash of it is logged, shown by `Engine.check`, and told once."""

    async def guarded() -> None:
        try:
            await engine.run(executor, lookout, watches)
        except Exception as e:
            engine.trouble = f"the engine crashed: {type(e).__name__}: {e}"
            log.exception("engine_crashed")
            on_crash()

    task = asyncio.create_task(guarded(), name="engine")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
