"""A TCP proxy on a free port that can be cut and joined again: an outage of what is behind it."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from tests.kit.ports import HeldPort


class CuttableProxy:
    def __init__(self, target_url: str) -> None:
        where = urlsplit(target_url)
        self._target = (where.hostname or "", where.port or 80)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._held = HeldPort()

    @property
    def url(self) -> str:
        return self._held.url

    async def __aenter__(self) -> CuttableProxy:
        await self.join()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cut()
        self._held.close()

    async def join(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._held.number)

    async def cut(self) -> None:
        """Refuse connections and end those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # cut off since it was taken
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        try:
            behind = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, behind[1]))
                    both.create_task(_pump(behind[0], writer))
            finally:
                behind[1].close()
        except (asyncio.CancelledError, ConnectionError, ExceptionGroup):
            return
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._pumps.discard(task)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
