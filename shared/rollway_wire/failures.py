"""The failure taxonomy: why a rollout has no usable row, who is to blame, and whether trying again can help.

A bad rollout is data: it is recorded with its cause and never becomes a reward of 0.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class FailureType(StrEnum):
    THROTTLED = "throttled"
    """The runtime refused to start it, repeatedly, for rate or quota."""
    START_FAILED = "start_failed"
    """The runtime could not start the container or the container did not accept the invocation."""
    AGENT_ERROR = "agent_error"
    """The agent ran and raised; its traceback is in the result."""
    AGENT_DIED = "agent_died"
    """The container vanished without saving a result."""
    TIMED_OUT = "timed_out"
    """No result within the rollout's time limit."""
    CANCELLED = "cancelled"
    """Stopped by request or because its batch was."""
    NO_TURNS = "no_turns"
    """The agent returned a result but made no model call through the gateway."""
    INCOMPLETE_CAPTURE = "incomplete_capture"
    """A turn lacks token ids or log-probs, or lengths disagree: it may not train."""
    CONTRACT_ERROR = "contract_error"
    """The set-up is broken (unknown runtime, missing bucket, no reward): the batch fails at once."""


RETRYABLE: frozenset[FailureType] = frozenset(
    {FailureType.THROTTLED, FailureType.START_FAILED, FailureType.AGENT_DIED, FailureType.INCOMPLETE_CAPTURE}
)
"""Types for which a second attempt can end differently with the same input."""


class Failure(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: FailureType
    message: str
    """One sentence a person can act on."""
    traceback: str | None = None
    """The agent's own, when it raised."""
