"""Delivery: what one call sends, and to whom: the client that asked, and those that ask the same again.

Messages are kept while the call may be asked for again, so that a retry gets the same answer from its start. When
nobody listens any more, somebody may still come for a while; then ``on_silence`` is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakMethod

from starlette.types import Message, Receive, Send

from rollway_kit.http_guard import piece_writer


class Delivery:
    def __init__(self, send: Send, *, grace_s: float, on_silence: Callable[[], None]) -> None:
        """
        Args:
            on_silence: a method, of an object that is not kept alive for it.
        """
        self._client: Send | None = send
        self._write = piece_writer(send)
        self._is_there = True
        """The client that asked, as far as is known."""
        self._grace_s, self._on_silence = grace_s, WeakMethod(on_silence)
        self._kept: list[Message] = []
        self._grown: asyncio.Event | None = None
        self._rejoined = 0
        """Retries listening."""
        self._silence: asyncio.TimerHandle | None = None
        self.ended = False

    @property
    def heard(self) -> bool:
        """Somebody listens."""
        return self._is_there or self._rejoined > 0

    @property
    def sent(self) -> list[Message]:
        """Everything so far."""
        return self._kept

    def send(self, message: Message) -> Awaitable[None]:
        self._kept.append(message)
        if self._grown is not None:
            self._tell()
        return self._client(message) if self._client is not None else _nothing()

    def piece(self, body: bytes) -> Awaitable[None] | None:
        """`send` of a piece of the body, not empty and not the last. None: it is out."""
        message: Message = {"type": "http.response.body", "body": body, "more_body": True}
        if self._write is None or self._grown is not None or not self._write(body):
            return self.send(message)
        self._kept.append(message)
        return None

    def end(self) -> None:
        """Nothing more will be sent."""
        self.ended, self._client, self._write = True, None, None
        self._tell()

    def lose_client(self) -> None:
        """The client that asked is gone."""
        self._client, self._write, self._is_there = None, None, False
        self.await_silence()

    async def rejoin(self, receive: Receive, send: Send, taken: Callable[[], None]) -> bool | None:
        """Send everything to one that asks again, from the first message to the end.

        True: it has all. False: nothing was ever sent. None: it left before the end.

        Args:
            taken: called with the last message out, before anything that the client does next can be heard.
        """
        self._rejoined += 1
        self.forget()
        replay, left = asyncio.create_task(self._replay(send, taken)), asyncio.create_task(client_left(receive))
        try:
            await asyncio.wait({replay, left}, return_when=asyncio.FIRST_COMPLETED)
            return replay.result() if replay.done() else None
        finally:
            replay.cancel()
            left.cancel()
            await asyncio.gather(replay, left, return_exceptions=True)
            self._rejoined -= 1
            self.await_silence()

    async def _replay(self, send: Send, taken: Callable[[], None]) -> bool:
        sent = 0
        while True:
            while sent < len(self._kept):
                await send(self._kept[sent])
                sent += 1
            if self.ended:
                if sent:
                    taken()
                return sent > 0
            if self._grown is None:
                self._grown = asyncio.Event()
            await self._grown.wait()

    def _tell(self) -> None:
        if self._grown is not None:
            grown, self._grown = self._grown, None
            grown.set()

    def await_silence(self) -> None:
        """Begin to wait for one that asks again, if nobody listens or all has been sent."""
        if self.heard and not self.ended:
            return
        self.forget()
        if self._grace_s == 0:
            self._fall_silent()
        else:
            self._silence = asyncio.get_running_loop().call_later(self._grace_s, self._fall_silent)

    def _fall_silent(self) -> None:
        if (told := self._on_silence()) is not None:
            told()

    def forget(self) -> None:
        """Wait no longer."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


async def _nothing() -> None:
    """Nobody listens."""


async def client_left(receive: Receive) -> None:
    """Until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
