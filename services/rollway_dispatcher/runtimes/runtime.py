"""The interface of a runtime, and what it may say when it cannot start a session."""

from __future__ import annotations

from typing import Protocol

from rollway_wire.failures import Failure, FailureType


class StartError(Exception):
    """A session was not started, or it is not known whether it was.

    The type says who is to blame: ``throttled`` (nothing was started, come back later), ``start_failed`` (this time),
    ``contract_error`` (never).
    """

    def __init__(self, kind: FailureType, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(type=kind, message=message)


class StopUnconfirmed(Exception):
    """The runtime did not confirm that the session is gone; ask again later."""


class Runtime(Protocol):
    """One place where sessions run. Methods may be called concurrently for different sessions."""

    async def start(self, session_id: str, payload: bytes) -> bytes:
        """Start the session and deliver the invocation; the agent's immediate answer.

        Called again for the same id after a restart of ours: a session that is still there is not started anew.

        Raises:
            StartError: nothing usable was started.
        """
        ...

    async def stop(self, session_id: str) -> None:
        """End the session; returns when it is gone, also if it never was. May be called while `start` is under way.

        Raises:
            StopUnconfirmed: it may still be there.
        """
        ...

    async def watch(self, session_id: str) -> str | None:
        """Return, with the reason, when the session is seen to be dead. Returns None where the runtime cannot see."""
        ...
