"""A session: one rollout's identity, its settings, its calls in flight and what they left behind. Plain state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rollway_gateway.dialects.responses.kept import KeptResponses
from rollway_gateway.exact.budget import Budget
from rollway_gateway.exact.fidelity import Fidelity
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.originals import Originals
from rollway_gateway.record import CallRecord
from rollway_gateway.routing import Routing
from rollway_wire.tokens import Trajectory, Turn


class SessionCall(Protocol):
    """What a session needs of a call in flight."""

    def abort(self, reason: str, error: AgentError | None) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    session_id: str
    pool: str
    sampling_params: Mapping[str, Any]
    metadata: dict[str, Any]
    created_at: float
    keeps_messages: bool
    responses: KeptResponses
    """What a Responses request may continue."""
    state: Literal["open", "sealing", "sealed"] = "open"
    worker_id: str | None = None
    """Where its calls go."""
    calls_begun: int = 0
    failed_calls: int = 0
    """Answered with an error before anything was sampled for the agent."""
    unread: dict[bytes, CallRecord] = field(default_factory=dict)
    """Whole answers that no client took, by digest of the request."""
    rejoined_calls: int = 0
    """Retries that got the answer of the call they repeat."""
    originals: Originals = field(default_factory=Originals)
    calls: set[SessionCall] = field(default_factory=set)
    """In flight."""
    budget: Budget = field(default_factory=Budget)
    fidelity: Fidelity = field(default_factory=Fidelity)
    routing: Routing = field(default_factory=Routing)
    records: list[CallRecord] = field(default_factory=list)
    spoiled: str | None = None
    """Why it may not train as a whole, whatever its turns say."""
    kept_bytes: int = 0
    when_idle: list[Callable[[], None]] = field(default_factory=list)
    """Called once each, when no call is in flight any more."""
    trajectory: Trajectory | None = None
    """Once sealed."""

    def turns(self) -> list[Turn]:
        """Those of an answer that no client took to its end are incomplete: the agent did not act on it."""
        return [turn if record.delivered else _undelivered(turn) for record in self.records for turn in record.turns]

    def lost_tokens(self) -> int:
        return sum(record.lost_tokens for record in self.records)

    def doubt(self) -> str | None:
        """Why the session may not train as a whole: an answer the agent acted on lacks evidence.

        A call that failed or was cut off before its answer was whole is recorded, trains nothing, and leaves the rest
        of the session good: the agent went on without it.
        """
        if self.spoiled is not None:
            return self.spoiled
        for record in self.records:
            for turn in record.turns:
                if record.answered and turn.incomplete is not None:
                    return f"turn {turn.turn_id}: {turn.incomplete}"
        return None


def _undelivered(turn: Turn) -> Turn:
    if turn.incomplete is not None:
        return turn
    return dataclasses.replace(turn, incomplete="the answer did not reach the agent")
