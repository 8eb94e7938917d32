"""Turns, sequences, trajectories and the ledger: what the gateway captured and what a trainer trains on.

Arrays are packed (``array.array``): token ids ``'i'`` int32, log-probs ``'f'`` float32, masks ``'B'`` uint8, policy
versions ``'i'`` int32, routed experts ``'B'`` uint8 or ``'H'`` uint16. Lengths that must agree are checked when a
value is made.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollway_wire.problems import ContractViolation
from rollway_wire.routing import RoutedExperts, Rows, check_spans, joined

IDS, LOGPROBS, MASK, VERSIONS = "i", "f", "B", "i"
NO_VERSION = -1
"""Policy version of a token the policy did not sample in this sequence."""
LOGPROB_SLACK = 1e-4
"""A float32 log-softmax may exceed 0 by rounding; more than this is not a log-prob."""


def _expect(name: str, value: Any, typecode: str) -> None:
    if not isinstance(value, array) or value.typecode != typecode:
        raise ContractViolation(f"{name} must be array({typecode!r}), got {type(value).__name__}")


_SIGN_BYTE = 3 if sys.byteorder == "little" else 0


def _has_negative(ids: array[int]) -> bool:
    """Whether an int32 array holds a negative value: the byte with the sign is then not ASCII. ``min`` makes an object
    of every element, ten times the cost on a prompt, and this runs on every model call."""
    return not ids.tobytes()[_SIGN_BYTE::4].isascii()


def _expect_ids(owner: str, *ids: array[int]) -> None:
    if any(_has_negative(part) for part in ids):
        raise ContractViolation(f"{owner}: a token id is below 0")


_USUAL = bytes([0x00, *range(0x80, 0xC6)])
"""First bytes (sign and most of the exponent) of float32 values above -8,192 and not above 1e-37."""


def are_usual_logprobs(logprobs: array[float]) -> bool:
    """Whether all are finite, none is above 0 by more than nothing, and none is near the -9999 that engines write for
    what they do not have. False: one may not be. Looks at one byte of each and makes no object of any."""
    return not logprobs.tobytes()[_SIGN_BYTE::4].translate(None, _USUAL)


def _expect_logprobs(owner: str, logprobs: array[float]) -> None:
    if are_usual_logprobs(logprobs):
        return
    # The sum of float32 values cannot overflow a float64, so it is finite exactly when each of them is.
    if not math.isfinite(sum(logprobs)) or max(logprobs) > LOGPROB_SLACK:
        raise ContractViolation(f"{owner}: a log-prob is not finite or is above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One choice of one model call, exactly as the engine reported it.

    A turn with ``incomplete`` set is kept for inspection and never trains. A complete turn has token ids and a finite
    log-prob for each, or it cannot be made.

    Raises:
        ContractViolation: a complete turn whose ids and log-probs differ in length, are empty, are not finite, or are
            on the wrong side of 0; routed experts that do not end at the last row, do not begin within the prompt, or
            are there in spite of ``unrouted``.
    """

    turn_id: str
    call_id: str
    """Shared by the choices of one call (n > 1)."""
    index: int
    """Order within the session, by the time the call was dispatched to a worker."""
    choice: int = 0
    prompt_token_ids: array[int]
    """int32, shape (prompt,)."""
    completion_token_ids: array[int]
    """int32, shape (completion,), end-of-sequence and stop tokens included."""
    logprobs: array[float]
    """float32, shape (completion,), of the sampled tokens."""
    finish_reason: str | None
    model: str = ""
    worker: str = ""
    """Worker id that sampled it."""
    policy_version_start: int
    """The trainer's weight step when the call was dispatched."""
    policy_version_end: int
    """The same when its last token arrived; differs when weights changed in between."""
    started_at: float
    """Unix seconds, call received."""
    first_token_at: float | None = None
    ended_at: float
    incomplete: str | None = None
    """Why this turn may not train; None when the evidence is whole."""
    routed_experts: RoutedExperts | None = None
    """Rows up to that of the last token but one, the last row there is; None: not kept, or see ``unrouted``."""
    unrouted: str | None = None
    """Why there are no routed experts although they were to be kept: the turn trains, but its routing cannot be
    replayed."""

    def __post_init__(self) -> None:
        _expect("prompt_token_ids", self.prompt_token_ids, IDS)
        _expect("completion_token_ids", self.completion_token_ids, IDS)
        _expect("logprobs", self.logprobs, LOGPROBS)
        if self.incomplete is None:
            if not self.prompt_token_ids or not self.completion_token_ids:
                raise ContractViolation(f"turn {self.turn_id}: a complete turn has prompt and completion tokens")
            if len(self.completion_token_ids) != len(self.logprobs):
                raise ContractViolation(
                    f"turn {self.turn_id}: {len(self.completion_token_ids)} tokens but {len(self.logprobs)} log-probs"
                )
            _expect_ids(f"turn {self.turn_id}", self.prompt_token_ids, self.completion_token_ids)
            _expect_logprobs(f"turn {self.turn_id}", self.logprobs)
        if (routed := self.routed_experts) is not None:
            prompt, last = len(self.prompt_token_ids), self.length - 1
            if routed.end != last or routed.start >= prompt or self.unrouted is not None:
                raise ContractViolation(
                    f"turn {self.turn_id}: routed experts of rows {routed.start} to {routed.end} for a prompt of "
                    f"{prompt} and {last + 1} tokens in all; unrouted: {self.unrouted}"
                )

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_token_ids) + len(self.completion_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One training row. All arrays have shape (length,).

    ``loss_mask`` is 1 where the policy sampled the token and this row trains it. Log-probs are meaningful there and are
    stored as 0.0 elsewhere (verl's convention for ``rollout_log_probs``); policy versions likewise, `NO_VERSION`
    elsewhere.

    Raises:
        ContractViolation: unequal lengths, a mask other than 0 and 1, a first token with mask 1 (a row needs a prompt),
            nothing to train, a token id below 0, a log-prob that is not finite or above 0, or ``routing`` that is not
            a row for each token but the last.
    """

    token_ids: array[int]
    loss_mask: array[int]
    logprobs: array[float]
    policy_versions: array[int]
    turn_ids: tuple[str, ...]
    """The turns whose sampled tokens this row trains, in order."""
    routing: tuple[Rows, ...] | None = None
    """Where its routed experts are, a row for each token but the last: `Trajectory.routed_experts` puts them together.
    None: they were not kept, or see ``unrouted``."""
    unrouted: str | None = None
    """Why its routing cannot be replayed although it was to be kept. Whole or not at all: no row is made up."""

    def __post_init__(self) -> None:
        _expect("token_ids", self.token_ids, IDS)
        _expect("loss_mask", self.loss_mask, MASK)
        _expect("logprobs", self.logprobs, LOGPROBS)
        _expect("policy_versions", self.policy_versions, VERSIONS)
        n = len(self.token_ids)
        if not n == len(self.loss_mask) == len(self.logprobs) == len(self.policy_versions):
            raise ContractViolation("a sequence's token_ids, loss_mask, logprobs and policy_versions differ in length")
        if n == 0 or self.loss_mask[0] or not any(self.loss_mask):
            raise ContractViolation("a sequence starts with a prompt token and trains at least one token")
        if max(self.loss_mask) > 1:
            raise ContractViolation("a sequence's loss_mask holds a value other than 0 and 1")
        _expect_ids("sequence", self.token_ids)
        _expect_logprobs("sequence", self.logprobs)
        if self.routing is not None:
            check_spans(self.routing, n)
            if self.unrouted is not None:
                raise ContractViolation(f"a sequence has routing and is unrouted: {self.unrouted}")

    @property
    def prompt_length(self) -> int:
        """Tokens before the first trained one."""
        return self.loss_mask.index(1)

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where every sampled token of a session went; each is in exactly one bucket.

    Raises:
        ContractViolation: the buckets do not add up to ``sampled``.
    """

    sampled: int = 0
    """Completion tokens the engine reported as usage, over all calls."""
    trained: int = 0
    """In a sequence's loss."""
    context: int = 0
    """Only in a sequence as context (mask 0), by a recorded choice."""
    duplicate: int = 0
    """A second sampling of a call already answered."""
    orphaned: int = 0
    """Captured but reachable from no sequence (a branch given up, a turn after the last scored one)."""
    lost: int = 0
    """Reported by usage but without whole evidence (ids or log-probs missing)."""

    def __post_init__(self) -> None:
        total = self.trained + self.context + self.duplicate + self.orphaned + self.lost
        if total != self.sampled or min(self.trained, self.context, self.duplicate, self.orphaned, self.lost) < 0:
            raise ContractViolation(f"ledger does not close: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """All that a session's model calls left behind.

    Raises:
        ContractViolation: a sequence takes routed experts from a turn that is not here, does not hold them, did not
            begin with the sequence's tokens, or has them in another form.
    """

    session_id: str
    mode: Literal["mirror", "exact"]
    turns: tuple[Turn, ...]
    sequences: tuple[Sequence, ...]
    """Ordered by the time of their last trained turn; the last one holds the final answer."""
    ledger: Ledger
    incomplete: str | None = None
    """Why the session may not train as a whole; None when every call's evidence is whole."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON values: sampling parameters enforced, template certificate, counts of drift events."""

    def __post_init__(self) -> None:
        routed = [s for s in self.sequences if s.routing is not None]
        if routed:
            by_id = {turn.turn_id: turn for turn in self.turns}
            for sequence in routed:
                _expect_routing(sequence, by_id)

    def routed_experts(self, sequence: Sequence) -> RoutedExperts | None:
        """All rows of one of its sequences, in one piece; None where the sequence has none."""
        if sequence.routing is None:
            return None
        by_id = {turn.turn_id: turn.routed_experts for turn in self.turns}
        return joined((value, span) for span in sequence.routing if (value := by_id[span.turn_id]) is not None)


def _expect_routing(sequence: Sequence, turns: Mapping[str, Turn]) -> None:
    tokens, form = sequence.token_ids.tobytes(), None
    for span in sequence.routing or ():
        turn = turns.get(span.turn_id)
        routed = None if turn is None else turn.routed_experts
        if turn is None or routed is None or span.start < routed.start or span.end > routed.end:
            raise ContractViolation(f"turn {span.turn_id} does not hold rows {span.start} to {span.end}")
        read = turn.prompt_token_ids.tobytes() + turn.completion_token_ids.tobytes()
        if not tokens.startswith(memoryview(read)[: 4 * span.end]):
            raise ContractViolation(f"turn {span.turn_id} is routed for other tokens than the sequence's")
        form = form or routed.form
        if routed.form != form:
            raise ContractViolation(f"turn {span.turn_id} is routed in the form {routed.form}, others in {form}")
