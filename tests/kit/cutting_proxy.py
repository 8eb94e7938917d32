"""A TCP proxy that breaks connections when told to: the network between an agent and its gateway, on a bad day."""

from __future__ import annotations

import asyncio
from types import TracebackType
from urllib.parse import urlsplit


class CuttingProxy:
    """``url`` leads to ``target``, a base URL, path kept. `cut` breaks the connections that stand; ``lose_answers``
    so many times the first byte of an answer breaks its connection instead of being passed on."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self.lose_answers = 0
        self.broken = 0
        """Connections broken so far."""

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}{self._target.path}"

    def cut(self) -> None:
        for writers in list(self._open.values()):
            self._break(writers)

    def _break(self, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        self.broken += 1
        for writer in writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target.hostname is not None
        onward, outward = await asyncio.open_connection(self._target.hostname, self._target.port)
        writers = (writer, outward)
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writers
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(reader, outward))
                group.create_task(self._answer(onward, writers))
        except* (ConnectionError, OSError):
            pass
        finally:
            del self._open[task]
            for end in writers:
                end.close()

    @staticmethod
    async def _ask(reader: asyncio.StreamReader, outward: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            outward.write(data)
            await outward.drain()
        outward.transport.abort()

    async def _answer(self, onward: asyncio.StreamReader, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        while data := await onward.read(1 << 16):
            if self.lose_answers:
                self.lose_answers -= 1
                self._break(writers)
                return
            writers[0].write(data)
            await writers[0].drain()
        writers[0].close()
