"""Several gateways as one pool's: sessions are spread over them, so whatever is said of the pool is said to each."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from rollway_driver.client.gateway import AsyncGatewayClient
from rollway_driver.client.retry import RetryPolicy
from rollway_wire.gateway import DEFAULT_POOL, PoolState, WorkerSpec, WorkerState
from rollway_wire.problems import RollwayError, Unavailable

T = TypeVar("T")


def split_urls(said: str | Iterable[str]) -> list[str]:
    """Gateways as a setting names them: comma-separated, or a list; each once, without a trailing slash.

    Raises:
        ValueError: none is named.
    """
    parts = said.split(",") if isinstance(said, str) else list(said)
    urls = list(dict.fromkeys(part.strip().rstrip("/") for part in parts if part.strip()))
    if not urls:
        raise ValueError("names no gateway")
    return urls


class AsyncGateways:
    """One `AsyncGatewayClient` each. Every method asks all at once and waits for all, and returns their answers in the
    gateways' order.

    Raises:
        RollwayError: from every method, when one did not do it: its own error where none did, else `Unavailable` that
            names those that did not. The others did it. Every method may be repeated.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ):
        """As `AsyncGatewayClient`; the key is the same for all."""
        self._each = [AsyncGatewayClient(url, api_key=api_key, headers=headers, retry=retry) for url in base_urls]

    @property
    def base_urls(self) -> list[str]:
        return [client.base_url for client in self._each]

    async def pool(self, name: str = DEFAULT_POOL) -> list[PoolState]:
        return await self._all(f"tell of pool {name!r}", lambda gateway: gateway.pool(name))

    async def add_worker(self, spec: WorkerSpec, pool: str = DEFAULT_POOL) -> list[WorkerState]:
        """Register an inference server, with one id everywhere: the given one, else one that its URL decides."""
        if spec.worker_id is None:
            digest = hashlib.sha256(spec.url.rstrip("/").encode()).hexdigest()
            spec = spec.model_copy(update={"worker_id": f"w-{digest[:12]}"})
        return await self._all(f"register {spec.url}", lambda gateway: gateway.add_worker(spec, pool))

    async def remove_worker(self, worker_id: str, pool: str = DEFAULT_POOL) -> None:
        await self._all(f"remove worker {worker_id}", lambda gateway: gateway.remove_worker(worker_id, pool))

    async def drain_worker(
        self, worker_id: str, pool: str = DEFAULT_POOL, *, timeout_s: float = 30.0
    ) -> list[WorkerState]:
        """As `GatewayClient.drain_worker`."""
        return await self._all(
            f"drain worker {worker_id}", lambda gateway: gateway.drain_worker(worker_id, pool, timeout_s=timeout_s)
        )

    async def open_pool(self, pool: str = DEFAULT_POOL, policy_version: int | None = None) -> list[PoolState]:
        """As `GatewayClient.open_pool`. A gateway that could not be opened refuses its sessions' calls meanwhile."""
        return await self._all(f"open pool {pool!r}", lambda gateway: gateway.open_pool(pool, policy_version))

    async def pause_pool(
        self, pool: str = DEFAULT_POOL, *, hold: bool = True, abort: bool = False, timeout_s: float = 30.0
    ) -> list[PoolState]:
        """As `GatewayClient.pause_pool`."""
        return await self._all(
            f"pause pool {pool!r}",
            lambda gateway: gateway.pause_pool(pool, hold=hold, abort=abort, timeout_s=timeout_s),
        )

    async def fence_pool(
        self, pool: str = DEFAULT_POOL, *, drain_timeout_s: float = 30.0, abort: bool = True
    ) -> list[PoolState]:
        """As `GatewayClient.fence_pool`; the pool is fenced once this returns, not before."""
        return await self._all(
            f"fence pool {pool!r}",
            lambda gateway: gateway.fence_pool(pool, drain_timeout_s=drain_timeout_s, abort=abort),
        )

    async def health(self) -> None:
        await self._all("answer for its health", lambda gateway: gateway.health())

    async def aclose(self) -> None:
        await asyncio.gather(*[client.aclose() for client in self._each])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _all(self, what: str, ask: Callable[[AsyncGatewayClient], Awaitable[T]]) -> list[T]:
        async def one(client: AsyncGatewayClient) -> T | RollwayError:
            try:
                return await ask(client)
            except RollwayError as e:
                return e

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(client)) for client in self._each]
        answers: list[Any] = [task.result() for task in tasks]
        failed = [(c.base_url, a) for c, a in zip(self._each, answers, strict=True) if isinstance(a, RollwayError)]
        if failed and len(failed) == len(answers):
            raise failed[0][1]
        if failed:
            said = "; ".join(f"{url}: {error}" for url, error in failed)
            raise Unavailable(f"{len(failed)} of {len(answers)} gateways did not {what}: {said}") from failed[0][1]
        return answers
