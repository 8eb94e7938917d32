"""Delivery: what one call sends, kept while it may be asked for again, so that a retry gets the same from its start."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send


class Delivery:
    """ASGI messages of one answer, sent on as they come to the client that asked, and to those that ask again."""

    def __init__(self, send: Send) -> None:
        self._client: Send | None = send
        self._kept: list[Message] = []
        self._grown: asyncio.Event | None = None
        self._ended = False

    @property
    def has_client(self) -> bool:
        """The client that asked is still there."""
        return self._client is not None

    def lose_client(self) -> None:
        self._client = None

    async def send(self, message: Message) -> None:
        self._kept.append(message)
        self._tell()
        if self._client is not None:
            await self._client(message)

    def end(self) -> None:
        """Nothing more will be sent."""
        self._ended = True
        self._tell()

    async def replay(self, send: Send) -> bool:
        """Send everything from the first message on, to the end. False: there was nothing."""
        sent = 0
        while True:
            while sent < len(self._kept):
                await send(self._kept[sent])
                sent += 1
            if self._ended:
                return sent > 0
            if self._grown is None:
                self._grown = asyncio.Event()
            await self._grown.wait()

    def _tell(self) -> None:
        if self._grown is not None:
            grown, self._grown = self._grown, None
            grown.set()
