"""The gateway's typed client for the trainer's side: pools of workers, fence and open, sessions and their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollway_driver.client import gateway_calls as calls
from rollway_driver.client.retry import RetryPolicy
from rollway_driver.client.transport import AsyncClosing, AsyncTransport, SyncClosing, SyncTransport, with_key
from rollway_wire.gateway import (
    DEFAULT_POOL,
    DrainWorker,
    FencePool,
    OpenPool,
    PausePool,
    PoolState,
    SessionSpec,
    SessionTicket,
    WorkerSpec,
    WorkerState,
)
from rollway_wire.ids import new_session_id
from rollway_wire.tokens import Trajectory

ADMIN_KEY = "ROLLWAY_GATEWAY_ADMIN_KEY"


def _named(spec: SessionSpec | None) -> SessionSpec:
    # The id is chosen here, so that a repeated POST finds the session it made rather than making another.
    spec = spec or SessionSpec()
    return spec if spec.session_id is not None else spec.model_copy(update={"session_id": new_session_id()})


def _pause(hold: bool, abort: bool, timeout_s: float) -> PausePool:
    return PausePool(
        new_calls="hold" if hold else "refuse", in_flight="abort" if abort else "drain", timeout_s=timeout_s
    )


class GatewayClient(SyncClosing):
    """The gateway's own API over HTTP. Safe to use from several threads at once. Retries as `DispatcherClient`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ):
        """``api_key``: the admin key; None: the environment's ROLLWAY_GATEWAY_ADMIN_KEY."""
        super().__init__(SyncTransport(base_url, headers=with_key(headers, api_key, ADMIN_KEY), retry=retry))

    def pools(self) -> list[PoolState]:
        return self._transport.send(calls.pools())

    def pool(self, name: str = DEFAULT_POOL) -> PoolState:
        return self._transport.send(calls.pool(name))

    def add_worker(self, spec: WorkerSpec, pool: str = DEFAULT_POOL) -> WorkerState:
        """Register an inference server; the same url again replaces it."""
        return self._transport.send(calls.add_worker(pool, spec))

    def remove_worker(self, worker_id: str, pool: str = DEFAULT_POOL) -> None:
        self._transport.send(calls.remove_worker(pool, worker_id))

    def drain_worker(self, worker_id: str, pool: str = DEFAULT_POOL, *, timeout_s: float = 30.0) -> WorkerState:
        """No new calls to it; wait up to ``timeout_s`` seconds for those there. Registering it again ends that."""
        return self._transport.send(calls.drain_worker(pool, worker_id, DrainWorker(timeout_s=timeout_s)))

    def open_pool(self, pool: str = DEFAULT_POOL, policy_version: int | None = None) -> PoolState:
        """Accept calls, stamped with ``policy_version``; None keeps the current one."""
        return self._transport.send(calls.open_pool(pool, OpenPool(policy_version=policy_version)))

    def pause_pool(
        self, pool: str = DEFAULT_POOL, *, hold: bool = True, abort: bool = False, timeout_s: float = 30.0
    ) -> PoolState:
        """For a weight update in the middle of turns: new calls wait (``hold``) or are refused; those at a worker end
        within ``timeout_s`` seconds, or are cut by the worker (``abort``) and go on when the pool is opened."""
        return self._transport.send(calls.pause_pool(pool, _pause(hold, abort, timeout_s)))

    def fence_pool(self, pool: str = DEFAULT_POOL, *, drain_timeout_s: float = 30.0, abort: bool = True) -> PoolState:
        """Refuse new calls and wait up to ``drain_timeout_s`` seconds for those in flight."""
        return self._transport.send(calls.fence_pool(pool, FencePool(drain_timeout_s=drain_timeout_s, abort=abort)))

    def open_session(self, spec: SessionSpec | None = None) -> SessionTicket:
        return self._transport.send(calls.open_session(_named(spec)))

    def session(self, session_id: str) -> dict[str, Any]:
        """State and counts of one session."""
        return self._transport.send(calls.session(session_id))

    def forget_session(self, session_id: str) -> None:
        self._transport.send(calls.forget_session(session_id))

    def trajectory(self, session_id: str) -> Trajectory:
        """The trajectory so far."""
        return self._transport.send(calls.trajectory(session_id))

    def seal(self, session_id: str) -> Trajectory:
        """Refuse further calls, cancel those in flight, and take the final trajectory. Idempotent."""
        return self._transport.send(calls.seal(session_id))

    def health(self) -> None:
        self._transport.send(calls.health())


class AsyncGatewayClient(AsyncClosing):
    """`GatewayClient` for one event loop: the same methods, awaited."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ):
        """``api_key``: the admin key; None: the environment's ROLLWAY_GATEWAY_ADMIN_KEY."""
        super().__init__(AsyncTransport(base_url, headers=with_key(headers, api_key, ADMIN_KEY), retry=retry))

    async def pools(self) -> list[PoolState]:
        return await self._transport.send(calls.pools())

    async def pool(self, name: str = DEFAULT_POOL) -> PoolState:
        return await self._transport.send(calls.pool(name))

    async def add_worker(self, spec: WorkerSpec, pool: str = DEFAULT_POOL) -> WorkerState:
        """As `GatewayClient.add_worker`."""
        return await self._transport.send(calls.add_worker(pool, spec))

    async def remove_worker(self, worker_id: str, pool: str = DEFAULT_POOL) -> None:
        await self._transport.send(calls.remove_worker(pool, worker_id))

    async def drain_worker(self, worker_id: str, pool: str = DEFAULT_POOL, *, timeout_s: float = 30.0) -> WorkerState:
        """As `GatewayClient.drain_worker`."""
        return await self._transport.send(calls.drain_worker(pool, worker_id, DrainWorker(timeout_s=timeout_s)))

    async def open_pool(self, pool: str = DEFAULT_POOL, policy_version: int | None = None) -> PoolState:
        """As `GatewayClient.open_pool`."""
        return await self._transport.send(calls.open_pool(pool, OpenPool(policy_version=policy_version)))

    async def pause_pool(
        self, pool: str = DEFAULT_POOL, *, hold: bool = True, abort: bool = False, timeout_s: float = 30.0
    ) -> PoolState:
        """As `GatewayClient.pause_pool`."""
        return await self._transport.send(calls.pause_pool(pool, _pause(hold, abort, timeout_s)))

    async def fence_pool(
        self, pool: str = DEFAULT_POOL, *, drain_timeout_s: float = 30.0, abort: bool = True
    ) -> PoolState:
        """As `GatewayClient.fence_pool`."""
        spec = FencePool(drain_timeout_s=drain_timeout_s, abort=abort)
        return await self._transport.send(calls.fence_pool(pool, spec))

    async def open_session(self, spec: SessionSpec | None = None) -> SessionTicket:
        return await self._transport.send(calls.open_session(_named(spec)))

    async def session(self, session_id: str) -> dict[str, Any]:
        """State and counts of one session."""
        return await self._transport.send(calls.session(session_id))

    async def forget_session(self, session_id: str) -> None:
        await self._transport.send(calls.forget_session(session_id))

    async def trajectory(self, session_id: str) -> Trajectory:
        """The trajectory so far."""
        return await self._transport.send(calls.trajectory(session_id))

    async def seal(self, session_id: str) -> Trajectory:
        """As `GatewayClient.seal`."""
        return await self._transport.send(calls.seal(session_id))

    async def health(self) -> None:
        await self._transport.send(calls.health())
