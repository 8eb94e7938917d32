"""The responses of a session that later requests may continue; only what each adds is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

OBJECT_BYTES = 768
"""About what a response costs besides what it adds."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    previous: str | None
    """The response it continued."""
    added: bytes
    """JSON: the chat messages it was asked with, and its answer."""


class ResponseStore(Protocol):
    """Responses by id."""

    def find(self, response_id: str) -> KeptResponse | None: ...

    def keep(self, response_id: str, kept: KeptResponse) -> None: ...


class KeptResponses:
    """A `ResponseStore` of at most ``limit`` bytes; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()
        self.on_keep: Callable[[str, KeptResponse], None] | None = None
        """Told of each."""

    def find(self, response_id: str) -> KeptResponse | None:
        return self._kept.get(response_id)

    def keep(self, response_id: str, kept: KeptResponse) -> None:
        self._drop(response_id)
        self._kept[response_id] = kept
        self._size += len(kept.added)
        while self._size > self._limit:
            self._drop(next(iter(self._kept)))
        if self.on_keep is not None:
            self.on_keep(response_id, kept)

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return self._size + OBJECT_BYTES * len(self._kept)

    def clear(self) -> None:
        self._kept.clear()
        self._size = 0

    def _drop(self, response_id: str) -> None:
        gone = self._kept.pop(response_id, None)
        self._size -= len(gone.added) if gone is not None else 0


def conversation(store: ResponseStore, response_id: str) -> list[dict[str, Any]]:
    """The chat messages up to and with the answer of a kept response.

    Raises:
        KeyError: with the id of the response that is not, or no longer, kept.
    """
    chain: dict[str, bytes] = {}
    at: str | None = response_id
    while at is not None:
        found = store.find(at)
        if found is None or at in chain:  # an id given twice by a client may lead back to itself
            raise KeyError(at)
        chain[at] = found.added
        at = found.previous
    return [message for added in reversed(chain.values()) for message in orjson.loads(added)]
