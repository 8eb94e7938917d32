"""The gateway's parts put together, and what spans more than one of them: sessions in pools, fencing, sealing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import structlog

from rollway_gateway import garbage
from rollway_gateway.connections import Connections
from rollway_gateway.engine_abort import abort_generations
from rollway_gateway.health import HealthWatch
from rollway_gateway.keeping import Keeping, open_keeping
from rollway_gateway.keys import SessionKeys
from rollway_gateway.pace import Pace
from rollway_gateway.pool import Pool
from rollway_gateway.pools_tree import pools_tree, restore_pools, take_told
from rollway_gateway.reconcile import reconcile_all
from rollway_gateway.session import Session
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.store import trajectory_of
from rollway_gateway.upstream import open_connections, open_upstream
from rollway_gateway.worker import Worker
from rollway_wire.gateway import (
    DEFAULT_POOL,
    DrainWorker,
    FencePool,
    PausePool,
    PoolState,
    SessionSpec,
    SessionTicket,
    WorkerSpec,
    WorkerState,
)
from rollway_wire.problems import Conflict, NotFound
from rollway_wire.tokens import Trajectory

log = structlog.get_logger()

RECONCILE_S = 2.0
"""Most that comparing tokens with the engines' counters may delay an answer."""


class Gateway:
    """One process's gateway. Made with `open_gateway`."""

    def __init__(
        self,
        settings: GatewaySettings,
        client: aiohttp.ClientSession,
        connections: Connections,
        keeping: Keeping,
        pools: dict[str, Pool],
    ) -> None:
        """
        Args:
            pools: empty; shared with what writes them down.
        """
        self.settings = settings
        self.client, self.connections = client, connections
        self.pace = Pace()
        signing = settings.signing_secrets
        if signing is None and keeping.secret is not None:
            signing = [keeping.secret]
        self.keys = SessionKeys(signing, required=settings.keys_required)
        self.keeping = keeping
        self.store = keeping.store
        self.pools = pools
        self.health = HealthWatch(client, settings, self.workers, self._hand_out)
        restore_pools(pools, keeping.pools, retry_after_s=settings.retry_after_s)
        self.ensure_pool(DEFAULT_POOL)

    # -- pools

    def ensure_pool(self, name: str) -> Pool:
        found = self.pools.get(name)
        if found is None:
            found = self.pools[name] = Pool(name, retry_after_s=self.settings.retry_after_s)
        return found

    def pool(self, name: str) -> Pool:
        """Raises:
        NotFound: no such pool."""
        found = self.pools.get(name)
        if found is None:
            raise NotFound(f"no pool {name!r}: register a worker in it or open it first")
        return found

    async def meet_again(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Bring the pools to what an earlier process was told, and check its workers before the first request, so that
        it is served at once; one that is slow to answer is left to the health watch."""
        take_told(self.pools, told, retry_after_s=self.settings.retry_after_s)
        if not self.keeping.pools and not told:
            return
        try:
            async with asyncio.timeout(self.settings.health_timeout_s), asyncio.TaskGroup() as group:
                for worker in self.workers():
                    group.create_task(self.health.check(worker))
        except TimeoutError:
            log.info("workers_not_met", workers=[w.worker_id for w in self.workers() if not w.healthy])

    async def keep_pools(self) -> None:
        """Write down what has changed in them: a restart goes on with it.

        Raises:
            JournalDown: it cannot be written now.
        """
        await self.keeping.keep_pools(pools_tree(self.pools))

    def workers(self) -> list[Worker]:
        return [w for pool in self.pools.values() for w in pool.workers.values()]

    def _hand_out(self) -> None:
        for pool in self.pools.values():
            pool.hand_out()

    async def drain(self, worker: Worker, how: DrainWorker) -> WorkerState:
        """No new calls to a worker; wait for those there. It stays so over a restart, until it is registered again."""
        worker.draining = True
        await self.keep_pools()
        idle = asyncio.Event()
        if worker.active:
            worker.when_idle.append(idle.set)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(how.timeout_s):
                    await idle.wait()
        log.info("worker_drained", worker=worker.worker_id, active=worker.active)
        return worker.state()

    def pool_state(self, pool: Pool) -> PoolState:
        return pool.state(self.store.count_open(pool.name))

    async def add_worker(self, pool: Pool, spec: WorkerSpec, api_path: str | None = None) -> tuple[Worker, bool]:
        """Register and check at once. One that cannot be reached stays registered, unhealthy, until a check passes."""
        worker, new = pool.put_worker(spec, api_path=api_path)
        await self.health.check(worker)  # at once, or the watch would check it too while the pools are written down
        await self.keep_pools()
        log.info("worker_added", pool=pool.name, worker=worker.worker_id, url=worker.url, healthy=worker.healthy)
        return worker, new

    async def fence(self, pool: Pool, how: FencePool) -> PoolState:
        """Refuse new calls, wait for those in flight, then abort what is left if asked to. Opening the pool ends it."""
        pool.fence()
        await self.keep_pools()
        await self._drained(pool, how.drain_timeout_s)
        if how.abort and pool.gate == "fenced" and pool.in_flight:
            log.warning("fence_aborts", pool=pool.name, calls=pool.in_flight)
            pool.abort_calls(f"the pool {pool.name!r} was fenced for a weight update")
            await self._drained(pool, self.settings.drain_s)
        return await self.reconciled(pool)

    async def pause(self, pool: Pool, how: PausePool) -> PoolState:
        """Hold or refuse new calls and wait for those at a worker to end, or tell the workers to end them."""
        pool.pause(refuses=how.new_calls == "refuse")
        await self.keep_pools()
        if how.in_flight == "abort":
            await abort_generations(self.client, [call.upstream for call in pool.calls], how.timeout_s)
        await self._drained(pool, how.timeout_s)
        return await self.reconciled(pool)

    async def reconciled(self, pool: Pool) -> PoolState:
        """The pool's state, after its workers at rest were compared with their engines' counters."""
        await self._answered(pool)
        if self.settings.process is None:  # else the supervisor does, who knows of all processes
            await reconcile_all(self.client, pool.workers.values(), RECONCILE_S)
        return self.pool_state(pool)

    @staticmethod
    async def _drained(pool: Pool, within_s: float) -> None:
        idle = asyncio.Event()
        pool.when_idle(idle.set)
        try:
            async with asyncio.timeout(within_s):
                await idle.wait()
        except TimeoutError:
            return

    @staticmethod
    async def _answered(pool: Pool) -> None:
        """A call leaves its pool once it is recorded, and its worker once its answer is written down and out: only then
        are the two compared. Clients that read slowly are not waited for long."""
        busy = [worker for worker in pool.workers.values() if worker.active]
        if pool.in_flight or not busy:
            return
        left = [asyncio.Event() for _ in busy]
        for worker, event in zip(busy, left, strict=True):
            worker.when_idle.append(event.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECONCILE_S):
                for event in left:
                    await event.wait()

    # -- sessions

    async def find(self, session_id: str) -> Session | None:
        """Wherever it is kept; in memory from now on."""
        return await self.keeping.find(session_id)

    async def session(self, session_id: str) -> Session:
        """Raises:
        NotFound: no such session, or only its trajectory is left."""
        found = await self.find(session_id)
        if found is None:
            raise NotFound(f"no session {session_id!r}")
        return found

    async def open_session(self, spec: SessionSpec, *, keeps_messages: bool) -> tuple[Session, bool]:
        """The session and whether it is new.

        Raises:
            NotFound: no such pool.
            BadRequest, Conflict: as `SessionStore.open`.
        """
        self.pool(spec.pool)
        if spec.session_id is not None:
            entry = self.store.entry(spec.session_id)
            if entry is not None and entry.object_key is not None:
                raise Conflict(f"session {spec.session_id!r} is sealed and archived")
            await self.find(spec.session_id)
        return self.store.open(spec, keeps_messages=keeps_messages and self.settings.keep_messages)

    def ticket(self, session: Session, base: str) -> SessionTicket:
        """``base``: scheme and host as the caller reached us, where no public URL is set."""
        url = self.settings.public_url or base.rstrip("/")
        return SessionTicket(
            session_id=session.session_id, base_url=url + self.agent_path(session), api_key=self.agent_key(session)
        )

    def agent_key(self, session: Session) -> str:
        return self.keys.issue(session.session_id, session.created_at + self.settings.key_life_s)

    def agent_path(self, session: Session) -> str:
        """Of the session's base URL; with its key, where keys are required, for agents that send a fixed one."""
        quoted = quote(session.session_id, safe="/:@!$&()*+,;=~")
        return f"/sessions/{self.keys.in_path(quoted, self.agent_key(session))}/v1"

    async def seal(self, session: Session) -> Trajectory:
        """Refuse further calls, abort those in flight, and cut the final trajectory once they have left."""
        self.store.begin_seal(session)
        while session.calls:
            left = asyncio.Event()
            session.when_idle.append(left.set)
            await left.wait()
        trajectory = self.store.seal(session)
        await self.keeping.committed()
        self.keeping.sealed(session)
        return trajectory

    async def trajectory(self, session_id: str) -> Trajectory:
        """So far; of a sealed session the final one, wherever it is.

        Raises:
            NotFound: no such session.
        """
        if (found := await self.keeping.archived(session_id)) is not None:
            return found
        session = await self.keeping.look(session_id)
        if session is None:
            raise NotFound(f"no session {session_id!r}")
        return session.trajectory or trajectory_of(session)

    async def seal_by_id(self, session_id: str) -> Trajectory:
        """`seal`, also of a session that is sealed and no longer in memory.

        Raises:
            NotFound: no such session.
        """
        if (found := await self.keeping.archived(session_id)) is not None:
            return found
        return await self.seal(await self.session(session_id))

    async def forget(self, session_id: str, *, remember: bool) -> Session | None:
        """Forget a session, written down before this returns; returns what it was, None: not known or archived."""
        session, entry = await self.find(session_id), self.store.entry(session_id)
        if session is not None:
            self.store.forget(session, remember=remember)
        elif entry is not None:
            self.store.forget_stored(entry, remember=remember)
        await self.keeping.committed()
        return session


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", task=task.get_name(), exc_info=error)


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, told: Sequence[Mapping[str, Any]] = (), *, collects: bool = False
) -> AsyncIterator[Gateway]:
    """A running gateway: connections open, what the journal holds taken, settings' workers registered, health watched.

    Args:
        told: of pools, to the process that this one takes the place of (`processes.told`).
        collects: it sees to the process's garbage collection, as `garbage` does.

    Shut down in the order: health watch, journal, connections. Calls in flight have ended by then (the server waits for
    them, then cancels them).
    """
    pools: dict[str, Pool] = {}
    async with (
        open_upstream(settings) as client,
        open_connections(settings) as connections,
        open_keeping(settings, lambda: pools_tree(pools)) as keeping,
    ):
        gateway = Gateway(settings, client, connections, keeping, pools)
        for url in settings.workers:
            spec = WorkerSpec(url=url, routed_experts=settings.routed_experts)
            gateway.ensure_pool(DEFAULT_POOL).put_worker(spec)
        if keeping.journal is not None:
            keeping.journal.start()
        await gateway.meet_again(told)
        tasks = [
            asyncio.create_task(gateway.health.run(), name="health-watch"),
            asyncio.create_task(keeping.run(), name="journal-tidy"),
        ]
        if collects:
            collecting = garbage.collect_when_idle(lambda: sum(pool.in_flight for pool in pools.values()))
            tasks.append(asyncio.create_task(collecting, name="garbage"))
        for task in tasks:
            task.add_done_callback(_report_end)
        try:
            yield gateway
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
