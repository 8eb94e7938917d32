"""A stream in its middle: each event goes on to the agent within the read that brings it.

A task that is woken for every event costs more than what is done with it, so the task waits for the end (`Answer.pump`)
and this is called from the connection. Sending is begun here and is over at once, unless the agent reads slowly: then
the flow stops, and the task waits for the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from time import monotonic
from types import coroutine
from typing import Any

from rollway_gateway.capture.sse import EventTooLarge, SseBlocks
from rollway_gateway.capture.stream import StreamFilter
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.worker import Worker


class Flow:
    """Of one stream, from an event of which the agent has something to one that is not like the others."""

    __slots__ = ("_blocks", "_events", "_piece", "_sending", "_waits_for", "_worker", "rest")

    def __init__(
        self, worker: Worker, blocks: SseBlocks, events: StreamFilter, piece: Callable[[bytes], Awaitable[None] | None]
    ) -> None:
        """
        Args:
            piece: sends a piece of the body; None: it is out.
        """
        self._worker, self._blocks, self._events, self._piece = worker, blocks, events, piece
        self._sending: Generator[Any, Any, None] | None = None
        """What waits for the agent."""
        self._waits_for: Any = None
        self.rest = b""
        """What is to be sent with the event that ended the flow, or before it."""

    def take(self, data: bytes) -> bool:
        """Send on what one read brought. False: the flow ends here, see `settled` and `rest`.

        Raises:
            AgentError: 502, an event has no end.
        """
        self._worker.bytes_at = monotonic()
        events, blocks = self._events, self._blocks
        shown = events.usual(data) if not blocks.rest and data.endswith(b"\n\n") else None
        if shown is None:
            try:
                shown = events.blocks(blocks.feed(data))
            except EventTooLarge as e:
                raise unreadable(e) from e
            if events.ended:
                self.rest = shown
                return False
            if not shown:
                return True
        if (waits := self._piece(shown)) is None:
            return True
        sending = waits.__await__()
        try:
            self._waits_for = next(sending)
        except StopIteration:
            return True
        self._sending = sending
        return False

    async def settled(self) -> None:
        """Until the agent takes what was sent."""
        sending, self._sending = self._sending, None
        if sending is not None:
            await _gone_on(sending, self._waits_for)


def unreadable(problem: EventTooLarge) -> AgentError:
    return AgentError(502, f"the worker's stream is not readable: {problem}")


@coroutine
def _gone_on(begun: Generator[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Await what was begun outside of a task, and waits."""
    try:
        while True:
            try:
                said = yield waits_for
            except BaseException as e:  # noqa: BLE001 - as `await` passes it on
                waits_for = begun.throw(e)
            else:
                waits_for = begun.send(said)
    except StopIteration:
        return
