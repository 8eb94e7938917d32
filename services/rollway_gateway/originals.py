"""Originals: a session's calls that a request may be the retry of. Pure state.

An SDK asks again when its connection breaks, its patience ends, or it gets a 5xx; the bytes it sends are the same. Such
a request gets the answer of the call it repeats. A request that only looks the same, because the agent wants another
sample, finds its original answered and delivered, or being answered to a client that still listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.types import Receive, Send

DELIVERED_KEPT = 4
"""Delivered answers kept, the latest, for SDKs that say that they ask again."""


class Original(Protocol):
    """What is needed of a call."""

    @property
    def asked(self) -> tuple[str, bytes]:
        """Kind and body of the request."""

    @property
    def delivered(self) -> bool: ...

    @property
    def size(self) -> int:
        """Bytes kept, of request and answer."""

    def answers_retry(self, *, said: bool) -> bool:
        """A request with the same body is a retry of this call.

        Args:
            said: the request says that it is a retry.
        """

    def forget(self) -> None:
        """No retry will come any more."""

    async def rejoin(self, receive: Receive, send: Send) -> None: ...


class Originals:
    def __init__(self) -> None:
        self._calls: list[Original] = []

    def find(self, asked: tuple[str, bytes], *, said: bool) -> Original | None:
        """The latest call that a request is a retry of."""
        for call in reversed(self._calls):
            if call.asked == asked and call.answers_retry(said=said):
                return call
        return None

    def add(self, call: Original) -> None:
        self._calls.append(call)
        delivered = [c for c in self._calls if c.delivered]
        for old in delivered[: max(0, len(delivered) - DELIVERED_KEPT)]:
            self.drop(old)

    def drop(self, call: Original) -> None:
        if call in self._calls:
            self._calls.remove(call)
            call.forget()

    def clear(self) -> None:
        for call in self._all():
            self.drop(call)

    @property
    def waiting(self) -> bool:
        """A request may be the retry of a call that is kept here."""
        return bool(self._calls)

    @property
    def size(self) -> int:
        """Bytes kept."""
        return sum(call.size for call in self._calls)

    def _all(self) -> Sequence[Original]:
        return list(self._calls)
