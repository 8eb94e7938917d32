"""Does what a step asks for: starts, watches, collects, stops, lists. Every outcome goes back as news.

Each effect is one task in the engine's TaskGroup. An effect never decides about a rollout; it reports what it saw.
An error nobody foresaw is logged with its traceback and becomes the failure of that one rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import structlog

from rollway_dispatcher.clock import Clock
from rollway_dispatcher.database import StoreTrouble
from rollway_dispatcher.gateway import GatewayClient
from rollway_dispatcher.invocation import REPORT_KEY_LIFE_S, check_receipt, invocation, report_keys
from rollway_dispatcher.lifecycle import Trigger
from rollway_dispatcher.order import Order
from rollway_dispatcher.runtimes.runtime import Runtime, StartError, StopUnconfirmed
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.step import (
    Collect,
    Collected,
    Happened,
    News,
    Outcome,
    Start,
    StartFailed,
    Stop,
    Stopped,
    Watch,
)
from rollway_dispatcher.verdict import judge
from rollway_kit.object_store import ObjectStore
from rollway_wire.batch import RuntimeSpec
from rollway_wire.failures import Failure, FailureType
from rollway_wire.gateway import SessionSpec, SessionTicket
from rollway_wire.ids import result_key
from rollway_wire.problems import NotFound, RollwayError, Unavailable
from rollway_wire.rollout import ReportTarget

log = structlog.get_logger()

T = TypeVar("T")

GATEWAY_PATIENCE_S = 60.0
"""How long a start waits for an unreachable gateway before it fails, and a stopped session for its seal."""
ABSENT_PATIENCE_S = 15.0
"""How long a result that was announced may be missing in S3."""
PARTIAL_PATIENCE_S = 10.0
"""How long sealing is retried for a rollout that has failed anyway."""
UNHEARD_S = 10.0
"""How long a stop looks again for a session that the gateway does not know: what a dispatcher sent before it was killed
may arrive after the stop, first the session, then its start."""
STOP_GIVEN_UP_S = 8 * 3600.0
"""AgentCore ends every session after eight hours: older ones are gone."""
COLLECT_AT_ONCE = 64
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_STATE_PAUSE_S = 1.0
_LONGEST_STOP_PAUSE_S = 30.0


class RuntimeSource(Protocol):
    def of(self, spec: RuntimeSpec) -> Runtime: ...


class Payloads(Protocol):
    secret: bytes

    async def payload(self, batch_id: str, group: int) -> dict[str, Any]: ...


async def _until_reached(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Repeat ``call`` while it raises `Unavailable`, with growing pauses; the first trouble is logged."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except Unavailable as e:
            if pause == _FIRST_PAUSE_S:
                log.warning("waiting", what=what, why=e.detail)
            await asyncio.sleep(max(pause, min(e.retry_after_s or 0.0, _LONGEST_PAUSE_S)))
            pause = min(pause * 2, _LONGEST_PAUSE_S)


class Executor:
    """The I/O of rollouts. ``tell`` takes the news; it must not block."""

    def __init__(
        self,
        *,
        settings: DispatcherSettings,
        objects: ObjectStore,
        gateway: GatewayClient | None,
        runtimes: RuntimeSource,
        payloads: Payloads,
        clock: Clock,
        tell: Callable[[News], None],
    ) -> None:
        self._settings = settings
        self._objects = objects
        self._gateway = gateway
        self._runtimes = runtimes
        self._payloads = payloads
        self._clock = clock
        self._tell = tell
        self._collecting = asyncio.Semaphore(COLLECT_AT_ONCE)  # bounds the results and trajectories in memory
        self._invoking: set[str] = set()
        self._opening: dict[str, asyncio.Task[SessionTicket]] = {}

    # Start.

    async def start(self, e: Start, order: Order) -> None:
        """INVOKED, NOTICED (a start resumed or not heard of, whose result is there) or StartFailed."""
        try:
            failure = await self._start(e, order)
        except StartError as error:
            failure = error.failure
            if failure.type is FailureType.START_FAILED and await self._ran_all_the_same(e, order):
                log.info("start_unheard", rollout_id=e.rollout_id, session_id=e.session_id, why=failure.message)
                self._tell(Happened(e.session_id, Trigger.NOTICED))
                return
        except Exception as error:
            log.exception("start_broke", rollout_id=e.rollout_id, session_id=e.session_id)
            failure = Failure(
                type=FailureType.START_FAILED, message=f"dispatcher error: {type(error).__name__}: {error}"
            )
        if failure is not None:
            self._tell(StartFailed(e.session_id, failure))

    async def _start(self, e: Start, order: Order) -> Failure | None:
        if e.resumed and await _until_reached(lambda: self._saved(order, e.group_id, e.session_id), "S3"):
            self._tell(Happened(e.session_id, Trigger.NOTICED))
            return None
        ticket = await self._open_session(e, order)
        row = await self._payload(e)
        body = invocation(order, e.group_id, row, ticket, self._report_target(e.session_id))
        self._invoking.add(e.session_id)
        try:
            answer = await self._runtimes.of(order.runtime).start(e.session_id, body)
        finally:
            self._invoking.discard(e.session_id)
        if (wrong := check_receipt(answer, order, e.group_id, e.session_id)) is not None:
            return wrong
        self._tell(Happened(e.session_id, Trigger.INVOKED))
        return None

    async def _ran_all_the_same(self, e: Start, order: Order) -> bool:
        """The agent's answer was lost, and its result is saved: a result that exists wins."""
        try:
            async with asyncio.timeout(PARTIAL_PATIENCE_S):
                return await self._saved(order, e.group_id, e.session_id)
        except (TimeoutError, RollwayError) as error:
            log.warning("result_not_looked_for", session_id=e.session_id, why=str(error) or "time-out")
            return False

    async def _payload(self, e: Start) -> dict[str, Any]:
        """Waits while the state cannot be read: no attempt has failed because of that."""
        while True:
            try:
                return await self._payloads.payload(e.batch_id, e.group)
            except StoreTrouble as error:
                log.warning("waiting", what="state", why=str(error))
                await asyncio.sleep(_STATE_PAUSE_S)

    def may_interrupt_start(self, session_id: str) -> bool:
        """A start may be cancelled until it asks the runtime; from then on its outcome must be known first."""
        return session_id not in self._invoking

    async def _open_session(self, e: Start, order: Order) -> SessionTicket | None:
        if order.capture is None:
            return None
        gateway = self._gateway_or_refuse()
        spec = SessionSpec(
            session_id=e.session_id,
            pool=order.capture.pool,
            sampling_params=order.sampling_params,
            metadata={"batch_id": e.batch_id, "rollout_id": e.rollout_id},
        )
        try:
            async with asyncio.timeout(GATEWAY_PATIENCE_S):
                return await _until_reached(lambda: self._opened(gateway, spec), "gateway")
        except TimeoutError:
            message = f"the gateway opened no session within {GATEWAY_PATIENCE_S:g} s"
            raise StartError(FailureType.START_FAILED, message) from None
        except RollwayError as error:
            kind = FailureType.CONTRACT_ERROR if error.status < 500 else FailureType.START_FAILED
            raise StartError(kind, error.detail) from error

    async def _opened(self, gateway: GatewayClient, spec: SessionSpec) -> SessionTicket:
        """Opened, or not; never in between: a request that was sent goes on when its start is cancelled, and the stop
        waits for it. Sealed before it is open, a session is unknown to the gateway, and open ever after."""
        assert spec.session_id is not None
        session_id, opening = spec.session_id, asyncio.create_task(gateway.open_session(spec))
        self._opening[session_id] = opening

        def over(task: asyncio.Task[SessionTicket]) -> None:
            if self._opening.get(session_id) is task:
                del self._opening[session_id]
            if not task.cancelled():
                task.exception()  # whoever waits gets it; nobody may

        opening.add_done_callback(over)
        return await asyncio.shield(opening)

    def _gateway_or_refuse(self) -> GatewayClient:
        if self._gateway is None:
            message = "the batch captures, but ROLLWAY_DISPATCHER_GATEWAY_URL is no longer set"
            raise StartError(FailureType.CONTRACT_ERROR, message)
        return self._gateway

    def _report_target(self, session_id: str) -> ReportTarget | None:
        base = self._settings.report_base()
        if base is None:
            return None
        key = report_keys(self._payloads.secret).issue("report", session_id, self._clock.now() + REPORT_KEY_LIFE_S)
        return ReportTarget(url=f"{base}/v1/reports", key=key, interval_s=self._settings.heartbeat_interval_s)

    # Watch.

    async def watch(self, e: Watch, order: Order) -> None:
        """SUSPECTED of having died, where the runtime can see that."""
        try:
            died = await self._runtimes.of(order.runtime).watch(e.session_id)
        except Exception:
            log.exception("watch_broke", session_id=e.session_id)
            return
        if died is not None:
            failure = Failure(type=FailureType.AGENT_DIED, message=died)
            self._tell(Happened(e.session_id, Trigger.SUSPECTED, failure))

    # Collect.

    async def collect(self, e: Collect, order: Order) -> None:
        """Collected, always."""
        limit = self._settings.collect_timeout_s
        try:
            async with self._collecting, asyncio.timeout(limit):
                outcome = await self._collect(e, order)
        except TimeoutError:
            message = f"the result could not be collected within {limit:g} s: S3 or the gateway did not answer"
            outcome = Outcome(Failure(type=FailureType.TIMED_OUT, message=message))
        except Exception as error:
            log.exception("collect_broke", rollout_id=e.rollout_id, session_id=e.session_id)
            message = f"dispatcher error: {type(error).__name__}: {error}"
            outcome = Outcome(Failure(type=FailureType.INCOMPLETE_CAPTURE, message=message))
        self._tell(Collected(e.session_id, outcome))

    async def _collect(self, e: Collect, order: Order) -> Outcome:
        saved = await self._read(e, order)
        if saved is None:
            said_done = Failure(type=FailureType.AGENT_DIED, message="the agent reported done but saved no result")
            return Outcome(e.suspicion or said_done, trajectory=await self._partial(e, order))
        trajectory = None
        if order.capture is not None and self._gateway is not None:
            trajectory = await self._seal(self._gateway, e.session_id)
        return await asyncio.to_thread(
            judge,
            saved,
            trajectory,
            session_id=e.session_id,
            captured=order.capture is not None,
            require_rewards=order.require_rewards,
            require_complete=order.capture is None or order.capture.require_complete,
        )

    async def _read(self, e: Collect, order: Order) -> bytes | None:
        """The saved result; None when there is none: at once for a suspect, after some patience for one announced."""
        key = result_key(order.exp_id, e.group_id, e.session_id)
        deadline = self._clock.now() + (0.0 if e.suspicion else ABSENT_PATIENCE_S)
        while True:
            try:
                return await _until_reached(lambda: self._objects.get(order.s3_bucket, key), "S3")
            except NotFound:
                if self._clock.now() >= deadline:
                    return None
            await asyncio.sleep(0.5)

    async def _seal(self, gateway: GatewayClient, session_id: str) -> bytes | None:
        try:
            return await _until_reached(lambda: gateway.seal_session(session_id), "gateway")
        except NotFound:
            return None

    async def _partial(self, e: Collect, order: Order) -> bytes | None:
        """What the gateway has of a failed rollout, for inspection; None when it cannot be had soon."""
        if order.capture is None or self._gateway is None:
            return None
        try:
            async with asyncio.timeout(PARTIAL_PATIENCE_S):
                return await self._seal(self._gateway, e.session_id)
        except (TimeoutError, RollwayError) as error:
            log.warning("no_partial_trajectory", session_id=e.session_id, why=str(error) or "time-out")
            return None

    async def _saved(self, order: Order, group_id: str, session_id: str) -> bool:
        key = result_key(order.exp_id, group_id, session_id)
        return any(o.key == key for o in await self._objects.list(order.s3_bucket, key))

    # Stop.

    async def stop(self, e: Stop, order: Order) -> None:
        """Stopped, always, once the runtime has confirmed it and the gateway takes no more of its model calls."""
        pause = _FIRST_PAUSE_S
        sealed, unheard, stopped_at = False, False, None
        began = self._clock.now()
        while True:
            try:
                if not sealed:
                    sealed, known = await self._sealed(e, order)
                    sealed = sealed and (known or self._clock.now() - began >= UNHEARD_S)
                    if sealed and unheard:
                        stopped_at = None  # once more: its start may have arrived after the first
                    unheard = unheard or not known
                if stopped_at is None:
                    await self._runtimes.of(order.runtime).stop(e.session_id)
                    stopped_at = self._clock.now()
                if sealed:
                    break
                why = "the gateway has not sealed it"
            except StopUnconfirmed as error:
                why = str(error)
            except Exception as error:
                log.exception("stop_broke", session_id=e.session_id)
                why = f"{type(error).__name__}: {error}"
            if stopped_at is not None and self._clock.now() - stopped_at > GATEWAY_PATIENCE_S:
                log.error("seal_given_up", session_id=e.session_id, why=why)  # its agent is gone: nobody calls for it
                break
            if self._clock.now() - e.since > STOP_GIVEN_UP_S:
                log.error("stop_given_up", session_id=e.session_id, why=why)
                break
            log.warning("stop_unconfirmed", session_id=e.session_id, why=why, retry_in_s=round(pause, 1))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_STOP_PAUSE_S)
        self._tell(Stopped(e.session_id))

    async def _sealed(self, e: Stop, order: Order) -> tuple[bool, bool]:
        """No more model calls for this session, whatever its agent does until it is gone (False: to be tried again),
        and whether the gateway knows it."""
        if order.capture is None or self._gateway is None or e.sealed:
            return True, True
        if (opening := self._opening.get(e.session_id)) is not None:
            await asyncio.wait([opening])
        try:
            await self._gateway.seal_session(e.session_id)
        except NotFound:
            return True, False
        except RollwayError as error:
            log.warning("seal_failed", session_id=e.session_id, why=error.detail)
            return False, True
        return True, True
