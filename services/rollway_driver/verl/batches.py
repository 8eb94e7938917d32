"""A batch's whole way: pool opened, posted, results awaited, groups committed, pool fenced, every prompt tagged.

What holds whatever happens (service down, time out, bad result, cancellation): every prompt that verl handed over gets
its terminal tag, because verl waits for it without end; and rows are there before the tag that announces them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from rollway_driver.verl.groups import Decided, Groups
from rollway_driver.verl.pool_gate import Gateways, PoolGate
from rollway_driver.verl.prompts import Prompt
from rollway_driver.verl.record import BatchRecord, Finished, append_line, save_group
from rollway_driver.verl.rows import RowRules, Session, read_session
from rollway_driver.verl.sampling import sampling_params
from rollway_driver.verl.settings import DriverSettings
from rollway_driver.verl.trainer_facts import TrainerFacts
from rollway_wire.batch import BatchRequest, BatchStatus, Capture, Group, Limits, Policy
from rollway_wire.failures import FailureType
from rollway_wire.problems import RollwayError

log = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 10.0

Partition = Literal["train", "val"]
Status = Literal["finished", "failure"]


class Dispatcher(Protocol):
    """What the driver asks of a dispatcher."""

    async def submit(self, request: BatchRequest, *, idempotency_key: str | None = None) -> BatchStatus: ...

    def stream(self, batch_id: str, *, timeout: float | None = None) -> AsyncIterator[Finished]: ...

    async def cancel(self, batch_id: str) -> BatchStatus: ...


class RowSink(Protocol):
    """Where rows and tags go: verl's TransferQueue."""

    async def running(self, partition: Partition, uids: Sequence[str]) -> None: ...

    async def put(self, order: Order, prompt: Prompt, sessions: Sequence[Session]) -> None: ...

    async def end(self, partition: Partition, uid: str, status: Status) -> None: ...


class BatchBroken(RuntimeError):
    """The set-up is wrong in a way that no further batch can mend; the run stops with this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One call of verl's ``generate_sequences``."""

    key: str
    """Unique in the run; the idempotency key."""
    step: int
    """verl's global_steps."""
    validate: bool
    prompts: tuple[Prompt, ...]

    @property
    def partition(self) -> Partition:
        return "val" if self.validate else "train"

    @property
    def policy_version(self) -> int:
        """Training at step s samples from the weights of step s-1; validation runs after step s's update."""
        return self.step if self.validate else self.step - 1


class Batches:
    """Runs orders, several at a time when verl refills."""

    def __init__(
        self,
        settings: DriverSettings,
        facts: TrainerFacts,
        *,
        dispatcher: Dispatcher,
        gateways: Gateways,
        sink: RowSink,
        on_last: Callable[[int, int], None] = lambda step, rows: None,
    ) -> None:
        """``on_last(step, rows)`` is called before the tag that lets verl train step ``step`` on ``rows`` rows."""
        self._settings = settings
        self._facts = facts
        self._dispatcher = dispatcher
        self._sink = sink
        self._on_last = on_last
        self._gate = PoolGate(gateways, settings.pool, settings.drain_timeout_s)
        self._rows: Counter[int] = Counter()

    async def run(self, order: Order) -> None:
        """Run one order to its last tag.

        Raises:
            BatchBroken: the dispatcher failed the batch for its set-up.
            RollwayError: a service could not be reached or answered wrongly; every prompt is tagged all the same.
            TimeoutError: ``batch_timeout_s`` is over; likewise.
        """
        run = _Run(self, order)
        try:
            await run.collect()
        except BaseException as e:
            run.record.error = f"{type(e).__name__}: {e}"
            raise
        finally:
            await asyncio.shield(run.settle())

    def request(self, order: Order) -> BatchRequest:
        settings, n = self._settings, self.rollouts_per_group(order)
        return BatchRequest(
            experiment_id=settings.experiment_id,
            groups=[Group(group_id=p.uid, payload=p.payload, n=n) for p in order.prompts],
            runtime=settings.runtime,
            model_id=self._facts.model_path,
            sampling_params=sampling_params(self._facts, settings.max_tokens, validate=order.validate),
            capture=Capture(pool=settings.pool),
            limits=Limits(
                rollout_timeout_s=settings.rollout_timeout_s,
                max_concurrent=settings.max_concurrent,
                max_attempts=settings.max_attempts,
            ),
            policy=self.policy(order),
            s3_bucket=settings.s3_bucket,
        )

    def policy(self, order: Order) -> Policy:
        """Validation wants every rollout of every group: what it left out would be what was slow."""
        return Policy() if order.validate else self._settings.policy

    def rollouts_per_group(self, order: Order) -> int:
        return self._facts.val_n if order.validate else self._facts.n

    def rules(self, order: Order) -> RowRules:
        return RowRules(
            policy_version=order.policy_version,
            budget=self._facts.budget,
            group_relative=self._facts.group_relative or order.validate,
            routing_replay=self._facts.routing_replay and not order.validate,
            reward=self._settings.reward,
        )


class _Run:
    """One order's state."""

    def __init__(self, batches: Batches, order: Order) -> None:
        self._b = batches
        self._order = order
        self._prompts = {p.uid: p for p in order.prompts}
        self._rules = batches.rules(order)
        n = batches.rollouts_per_group(order)
        survivors = 1 if order.validate else batches._settings.min_group_survivors
        extra = batches.policy(order).extra
        self._groups = Groups(list(self._prompts), n, survivors, extra)
        self._finished: defaultdict[str, list[Finished]] = defaultdict(list)
        self._begin = time.monotonic()
        self._batch_done = False
        self.record = BatchRecord(
            step=order.step,
            validate=order.validate,
            policy_version=order.policy_version,
            groups=len(order.prompts),
            rollouts=len(order.prompts) * (n + extra),
        )

    async def collect(self) -> None:
        b, order = self._b, self._order
        await b._gate.enter(self._prompts, order.policy_version)
        await b._sink.running(order.partition, list(self._prompts))
        status = await b._dispatcher.submit(b.request(order), idempotency_key=order.key)
        self.record.batch_id = status.batch_id
        async for result, trajectory in b._dispatcher.stream(status.batch_id, timeout=b._settings.batch_timeout_s):
            ended = read_session(result, trajectory, self._rules)
            decided = self._groups.take(result.group_id, ended)
            if decided is not None or result.group_id in self._groups.open:
                self._finished[result.group_id].append((result, trajectory))
            if decided is not None:
                await self._close(decided)
        self._batch_done = True
        self._refuse_broken()

    async def settle(self) -> None:
        """Tag what is still open, and stop the batch's rollouts if any may still run."""
        await self._cancel()
        failed: BaseException | None = None
        for uid in sorted(self._groups.open):
            try:
                await self._close(self._groups.give_up(uid))
            except Exception as e:  # noqa: BLE001 - raised below, once every other prompt has its tag too
                failed = failed or e
        if failed is not None:
            raise failed

    async def _cancel(self) -> None:
        """Best effort: verl waits for the tags that come after, and each rollout has its own time limit."""
        if self.record.batch_id is None or self._batch_done:
            return
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self._b._dispatcher.cancel(self.record.batch_id)
        except (RollwayError, TimeoutError) as e:
            log.warning(
                "batch %s could not be cancelled, its rollouts end by their time limit: %s", self.record.batch_id, e
            )

    async def _close(self, decided: Decided) -> None:
        order, uid = self._order, decided.uid
        self.record.decided.append(decided)
        for refusal in decided.refusals:
            log.warning(
                "step %d group %s rollout %d: %s: %s", order.step, uid, refusal.index, refusal.type, refusal.message
            )
        status: Status = "failure"
        try:
            await self._save(uid)
            if decided.committed:
                await self._b._sink.put(order, self._prompts[uid], decided.sessions)
                self._b._rows[order.step] += decided.rows
                status = "finished"
        finally:
            await self._b._gate.leave(uid, partial(self._tag, uid, status))

    async def _tag(self, uid: str, status: Status, last: bool) -> None:
        try:
            if not self._groups.open:
                await self._write_line()
            if last and not self._order.validate:
                self._b._on_last(self._order.step, self._b._rows[self._order.step])
        finally:
            await self._b._sink.end(self._order.partition, uid, status)

    def _folder(self) -> Path | None:
        root = self._b._settings.trajectories_dir
        return root and root / f"step-{self._order.step:06d}-{self._order.partition}"

    async def _save(self, uid: str) -> None:
        folder, finished = self._folder(), self._finished.pop(uid, [])
        if folder is not None and finished:
            await asyncio.to_thread(save_group, folder, uid, finished)

    async def _write_line(self) -> None:
        path = self._b._settings.metrics_path
        if path is not None:
            line = self.record.line(seconds=time.monotonic() - self._begin, trajectories=self._folder())
            await asyncio.to_thread(append_line, path, line)

    def _refuse_broken(self) -> None:
        messages = {r.message for d in self.record.decided for r in d.refusals if r.type == FailureType.CONTRACT_ERROR}
        if messages:
            raise BatchBroken(f"batch {self.record.batch_id}: the set-up is broken: {'; '.join(sorted(messages))}")
