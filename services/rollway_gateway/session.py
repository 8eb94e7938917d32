"""A session: one rollout's identity, its settings, its calls in flight and what they left behind. Plain state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rollway_gateway.dialects.responses.kept import KeptResponses
from rollway_gateway.exact.budget import Budget
from rollway_gateway.exact.fidelity import Fidelity
from rollway_gateway.journal.entries import Entry
from rollway_gateway.kept_turn import KeptTurn, Newest
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.originals import Originals
from rollway_gateway.record import CallRecord
from rollway_gateway.routing import Routing
from rollway_wire.tokens import Trajectory, Turn

SESSION_BYTES = 6144
"""About what a session costs without its calls."""
CALL_BYTES = 1024
"""About what a call costs besides its turns and messages."""
EXACT_TURN_BYTES = 3072
"""About what exact mode keeps of a turn besides its ids: the answer as a message, and the messages' places."""
EXACT_ID_BYTES = 7
"""An id as text with its comma, in which exact mode keeps those of a turn that was gone on from."""


class SessionCall(Protocol):
    """What a session needs of a call in flight."""

    @property
    def call_id(self) -> str: ...

    def digest(self) -> bytes:
        """Of its request, by which a retry is known."""

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
    state: Literal["open", "sealing", "sealed", "gone"] = "open"
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
    newest: Newest = field(default_factory=Newest)
    lost_calls: list[str] = field(default_factory=list)
    """In flight when a process ended: what was sampled for them, if anything, is not known."""
    spoiled: str | None = None
    """Why it may not train as a whole, whatever its turns say."""
    entry: Entry | None = None
    """In the journal."""
    kept_bytes: int = 0
    """Of messages."""
    turn_bytes: int = 0
    """Of turns."""
    exact_bytes: int = 0
    """Of what exact mode keeps of them once more."""
    counted: int = 0
    """Of `size`, by the store that has it in memory."""
    visits: int = 0
    """Requests that are about to do something with it."""
    on_left: Callable[[Session], None] | None = None
    """Told when the last of them is over."""
    when_idle: list[Callable[[], None]] = field(default_factory=list)
    """Called once each, when no call is in flight any more."""
    trajectory: Trajectory | None = None
    """Once sealed."""

    def keep(self, record: CallRecord) -> None:
        """Take a finished call's record."""
        record.keep(self.newest)
        self.hold(record)

    def hold(self, record: CallRecord) -> None:
        """Take a record whose turns are kept already."""
        self.records.append(record)
        self.newest.extend(record.kept)
        self.kept_bytes += record.kept_bytes
        self.turn_bytes += CALL_BYTES + sum(turn.size for turn in record.kept)
        self.exact_bytes += sum(map(_exact_bytes, record.kept))

    def trim(self, limit: int) -> None:
        """Keep so many bytes of messages; the oldest calls lose theirs."""
        for old in self.records:
            if self.kept_bytes <= limit:
                break
            self.kept_bytes -= old.kept_bytes
            old.request = old.answer = None

    @property
    def size(self) -> int:
        """Bytes in memory, about. Cost: a look at the few answers that a retry may still get."""
        exact = self.exact_bytes if self.fidelity.exact else 0
        kept = self.responses.size + self.originals.size + self.routing.size
        return SESSION_BYTES + self.kept_bytes + self.turn_bytes + exact + kept

    @property
    def is_idle(self) -> bool:
        """Nothing goes on in it that memory alone holds."""
        waits = self.visits or self.calls or self.when_idle or self.originals.waiting
        return not waits and self.state != "sealing"

    @contextmanager
    def visit(self) -> Iterator[None]:
        """It stays in memory for as long."""
        self.visits += 1
        try:
            yield
        finally:
            self.visits -= 1
            if not self.visits and self.on_left is not None:
                self.on_left(self)

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
            for turn in record.kept:
                if record.answered and turn.incomplete is not None:
                    return f"turn {turn.turn_id}: {turn.incomplete}"
        return None


def _exact_bytes(turn: KeptTurn) -> int:
    """The suffix is another array unless it is a whole prompt; a sampled token's text is about four characters."""
    new, sampled = len(turn.suffix), len(turn.completion_token_ids)
    own = 0 if turn.extends is None else 4 * new
    return EXACT_TURN_BYTES + own + EXACT_ID_BYTES * (new + sampled) + 4 * sampled


def _undelivered(turn: Turn) -> Turn:
    if turn.incomplete is not None:
        return turn
    return dataclasses.replace(turn, incomplete="the answer did not reach the agent")
