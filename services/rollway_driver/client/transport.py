"""Sends a `Call` with httpx, sync or async, and tries again as `retry` says. Foreign exceptions are translated here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from rollway_driver.client.call import Answer, Call, read_answer
from rollway_driver.client.retry import Attempts, RetryPolicy
from rollway_wire.problems import GatewayTimeout, RollwayError, Unavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
MAX_KEEPALIVE = 32
"""httpcore's pool costs quadratic time in idle connections."""
OFF_LOOP_BYTES = 64 * 1024
"""A larger body is decoded in a thread: a page of trajectories takes tens of milliseconds."""


def with_key(headers: Mapping[str, str] | None, api_key: str | None, variable: str) -> dict[str, str]:
    """``headers`` with a service's key as bearer token: the given one, else the environment's. Of several in the
    variable, as the service itself takes them, the first."""
    key = api_key or os.environ.get(variable, "").partition(",")[0].strip()
    return {**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}


def _options(base_url: str, headers: Mapping[str, str] | None) -> dict[str, Any]:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url must be an http:// or https:// URL of the service, got {base_url!r}")
    return {
        "base_url": base_url.rstrip("/"),
        "headers": dict(headers or {}),
        # Loading the certificate store reads files and takes tens of milliseconds; plain http has no use for it.
        "verify": parts.scheme == "https",
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=MAX_KEEPALIVE),
    }


def _arguments(call: Call[Any]) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params) or None,  # an empty one would take away the query that the path has
        "headers": dict(call.headers) | ({"content-type": "application/json"} if call.content is not None else {}),
        "content": call.content,
        "timeout": httpx.Timeout(call.timeout_s, connect=CONNECT_TIMEOUT_S),
    }


def _answer(response: httpx.Response) -> Answer:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return Answer(
        response.status_code,
        media_type,
        response.content,
        response.headers.get("retry-after"),
        response.links.get("next", {}).get("url"),
    )


def _following(call: Call[T], answer: Answer) -> Call[T] | None:
    """The call for a list's next page; None after the last."""
    return None if answer.next_path is None else replace(call, path=answer.next_path, params={})


def _lost(error: httpx.HTTPError, where: str) -> RollwayError:
    if isinstance(error, httpx.ReadTimeout):
        return GatewayTimeout(f"{where}: no answer in time")
    return Unavailable(f"{where}: cannot be reached: {type(error).__name__}: {error}")


class _Lines:
    """Cuts bytes at line feeds; not as text, whose lines end at U+2028, too."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def of(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk."""
        first, *later = chunk.split(b"\n")
        self._begun.append(first)
        if not later:
            return []
        ended = [b"".join(self._begun), *later[:-1]]
        self._begun = later[-1:]
        return ended


class SyncTransport:
    """One connection pool to one service. Safe to use from several threads at once.

    Raises:
        ValueError: ``base_url`` is not an http(s) URL.
    """

    def __init__(self, base_url: str, *, headers: Mapping[str, str] | None = None, retry: RetryPolicy | None = None):
        self.base_url = base_url.rstrip("/")
        self.retry = retry or RetryPolicy()
        self._http = httpx.Client(**_options(base_url, headers))

    def send(self, call: Call[T]) -> T:
        """The call's value. Raises as `read_answer`, and `Unavailable` or `GatewayTimeout` past the deadline."""
        return self._exchange(call)[0]

    def send_all(self, call: Call[list[T]]) -> list[T]:
        """Every page of a list. Raises as `send`."""
        found: list[T] = []
        page: Call[list[T]] | None = call
        while page is not None:
            items, answer = self._exchange(page)
            found += items
            page = _following(page, answer)
        return found

    def _exchange(self, call: Call[T]) -> tuple[T, Answer]:
        where, attempts = f"{call.method} {self.base_url}{call.path}", Attempts(self.retry)
        while True:
            try:
                answer = _answer(self._http.request(**_arguments(call)))
                return read_answer(call, answer, where), answer
            except httpx.HTTPError as e:
                error = _lost(e, where)
            except RollwayError as e:
                error = e
            wait = attempts.after(error)
            log.info("%s: %s; again in %.2f s", where, error, wait)
            time.sleep(wait)

    def lines(self, call: Call[None]) -> Iterator[bytes]:
        """The lines of an answer as they come, the last one only if it is whole. One attempt.

        Raises:
            RollwayError: as `send`, also when the connection is lost.
        """
        where, lines = f"{call.method} {self.base_url}{call.path}", _Lines()
        try:
            with self._http.stream(**_arguments(call)) as response:
                if response.status_code >= 300:
                    response.read()
                    read_answer(call, _answer(response), where)
                for chunk in response.iter_bytes():
                    yield from lines.of(chunk)
        except httpx.HTTPError as e:
            raise _lost(e, where) from e

    def close(self) -> None:
        self._http.close()


class AsyncTransport:
    """`SyncTransport` for one event loop. A cancelled `send` closes its connection and leaves nothing behind."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str] | None = None, retry: RetryPolicy | None = None):
        self.base_url = base_url.rstrip("/")
        self.retry = retry or RetryPolicy()
        self._http = httpx.AsyncClient(**_options(base_url, headers))

    async def send(self, call: Call[T]) -> T:
        """As `SyncTransport.send`."""
        return (await self._exchange(call))[0]

    async def send_all(self, call: Call[list[T]]) -> list[T]:
        """As `SyncTransport.send_all`."""
        found: list[T] = []
        page: Call[list[T]] | None = call
        while page is not None:
            items, answer = await self._exchange(page)
            found += items
            page = _following(page, answer)
        return found

    async def _exchange(self, call: Call[T]) -> tuple[T, Answer]:
        where, attempts = f"{call.method} {self.base_url}{call.path}", Attempts(self.retry)
        while True:
            try:
                answer = _answer(await self._http.request(**_arguments(call)))
                if len(answer.content) > OFF_LOOP_BYTES:
                    return await asyncio.to_thread(read_answer, call, answer, where), answer
                return read_answer(call, answer, where), answer
            except httpx.HTTPError as e:
                error = _lost(e, where)
            except RollwayError as e:
                error = e
            wait = attempts.after(error)
            log.info("%s: %s; again in %.2f s", where, error, wait)
            await asyncio.sleep(wait)

    async def lines(self, call: Call[None]) -> AsyncIterator[bytes]:
        """The lines of an answer as they come, the last one only if it is whole. One attempt.

        Raises:
            RollwayError: as `send`, also when the connection is lost.
        """
        where, lines = f"{call.method} {self.base_url}{call.path}", _Lines()
        try:
            async with self._http.stream(**_arguments(call)) as response:
                if response.status_code >= 300:
                    await response.aread()
                    read_answer(call, _answer(response), where)
                async for chunk in response.aiter_bytes():
                    for line in lines.of(chunk):
                        yield line
        except httpx.HTTPError as e:
            raise _lost(e, where) from e

    async def aclose(self) -> None:
        await self._http.aclose()


class SyncClosing:
    """``with`` and ``close`` for a client over a `SyncTransport`."""

    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncClosing:
    """``async with`` and ``aclose`` for a client over an `AsyncTransport`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()
