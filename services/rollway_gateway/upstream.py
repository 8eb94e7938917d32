"""The connections to workers, their failures told apart once: `Connections` for model calls, aiohttp for the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from rollway_gateway.connection import Answer, Silence
from rollway_gateway.connections import CannotConnect, Connections
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.worker_address import Addresses, WorkerResolver


class WorkerProblem(Exception):
    """A worker did not answer, by no fault of the request. Another may be asked.

    WorkerLost      the connection failed
    WorkerSilent    no byte came
    WorkerFailed    it said so itself
    """


class WorkerLost(WorkerProblem):
    """The connection failed: refused, reset, or closed before the answer was whole. Another worker may be tried."""

    def __init__(self, detail: str, *, refused: bool = False) -> None:
        super().__init__(detail)
        self.refused = refused
        """No connection could be made, so the same worker need not be tried again."""


class WorkerSilent(WorkerProblem):
    """The connection stands and no byte came for the allowed time."""


class WorkerFailed(WorkerProblem):
    """It answered with a 5xx or a 429, or ended its stream with an error."""

    def __init__(self, detail: str, *, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """
        Args:
            status: of the answer; 200 for a stream, whose error ``body`` is then the last event.
        """
        super().__init__(detail)
        self.status, self.headers, self.body = status, headers, body

    @property
    def busy(self) -> bool:
        """It takes no more for now, and is well."""
        return self.status in (429, 503)


@asynccontextmanager
async def open_connections(settings: GatewaySettings) -> AsyncIterator[Connections]:
    connections = Connections(
        connect_s=settings.connect_timeout_s, inactivity_s=settings.upstream_inactivity_s,
        keepalive_s=settings.upstream_keepalive_s,
        resolve=Addresses(allow_link_local=settings.allow_link_local_workers),
    )  # fmt: skip
    try:
        yield connections
    finally:
        connections.close()


@asynccontextmanager
async def open_upstream(settings: GatewaySettings) -> AsyncIterator[aiohttp.ClientSession]:
    """The client session. No limit on connections: agents' calls in flight are the limit. Redirects are never followed
    by its users, and the machine's proxy settings are not read."""
    resolver = None if settings.allow_link_local_workers else WorkerResolver()
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=settings.upstream_keepalive_s, resolver=resolver)
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.upstream_inactivity_s
    )
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(),
        headers={"accept-encoding": "identity"}, skip_auto_headers=("user-agent",),
    ) as client:  # fmt: skip
        yield client


@asynccontextmanager
async def post(connections: Connections, url: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[Answer]:
    """POST JSON; leaving before the answer's end closes the connection, on which vLLM aborts the generation.

    Raises:
        WorkerLost, WorkerSilent: also for what the body of the ``async with`` reads.
    """
    try:
        async with connections.post(url, body, {"content-type": "application/json", **headers}) as answer:
            yield answer
    except CannotConnect as e:
        raise WorkerLost(f"cannot connect: {e}", refused=True) from e
    except Silence as e:
        raise WorkerSilent(str(e)) from e
    except ConnectionError as e:  # AnswerBroken is one
        raise WorkerLost(f"{type(e).__name__}: {e}") from e


async def fetch(client: aiohttp.ClientSession, url: str) -> tuple[int, str, bytes]:
    """GET: status, content type and body. Raises as `post`."""
    try:
        async with client.get(url, allow_redirects=False) as response:
            return response.status, response.headers.get("content-type", ""), await response.read()
    except TimeoutError as e:
        raise WorkerSilent(f"no byte within the allowed time: {e}") from e
    except (aiohttp.ClientError, ConnectionError) as e:
        raise WorkerLost(f"{type(e).__name__}: {e}") from e
