"""What a dialect is: a request read into a chat request, and the ways to answer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rollway_gateway.dialects.responses.kept import ResponseStore


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to tell the agent.

    ``kind`` is the engine's own error type where the engine refused; None: named as the provider names the status.
    """

    status: int
    message: str
    kind: str | None = None
    param: str | None = None


class Encoder(Protocol):
    """One streamed answer, as the dialect's server-sent events. Each method gives the bytes to send now."""

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """For one chat chunk as the agent of a chat call would see it.

        Raises:
            UnreadableChunk: the chunk contradicts those before it.
            TypeError, KeyError and the like: it has an unknown form.
        """

    def end(self) -> bytes:
        """For the end of the chat stream; nothing after `fail`."""

    def fail(self, failure: Failure) -> bytes:
        """For an error in the middle of the stream: its last event."""

    def keep_alive(self) -> bytes:
        """For a comment of the engine's stream."""


class Exchange(Protocol):
    """One request, read."""

    @property
    def chat(self) -> dict[str, Any]:
        """The chat request."""

    def answer(self, chat: dict[str, Any]) -> dict[str, Any]:
        """The dialect's answer for a whole chat answer."""

    def stream(self) -> Encoder: ...


class Dialect(Protocol):
    """One provider's API."""

    request_id_header: bytes
    """The header by which its SDK learns the id of a request."""

    def open(self, body: dict[str, Any], kept: ResponseStore) -> Exchange:
        """Read a request; ``kept`` are the session's earlier responses.

        Raises:
            AgentError: 400 or 404, saying what cannot be served.
        """

    def refuse(self, failure: Failure) -> tuple[int, dict[str, Any]]:
        """Status and body for a request that failed before its first event."""
