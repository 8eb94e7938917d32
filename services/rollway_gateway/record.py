"""What a finished call left behind: its turns, made from the evidence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.kept_turn import KeptTurn, kept
from rollway_wire.problems import ContractViolation
from rollway_wire.tokens import IDS, Turn


@dataclass(slots=True, eq=False, kw_only=True)
class CallRecord:
    """One finished call: its turns, one per choice, and the messages where the session keeps them."""

    call_id: str
    fresh: tuple[Turn, ...] = ()
    """Its turns, until the session keeps them."""
    kept: tuple[KeptTurn, ...] = ()
    """As the session keeps them."""
    prompt_tokens: int | None
    """As the engine's usage says; None: it said nothing."""
    completion_tokens: int | None
    lost_tokens: int
    """Of the usage, held by no turn."""
    answered: bool
    """The engine's whole answer went to the agent."""
    delivered: bool = True
    """A client was there to take it to its end."""
    sampled_again: bool = False
    """Not delivered, and asked for again when its answer was no longer kept."""
    request: bytes | None = None
    """The agent's body."""
    answer: bytes | None = None
    """What the agent got; of a stream, its message alone."""
    routed_experts: dict[int, str] = field(default_factory=dict)
    """As the engine wrote them, by choice, until the turns have them."""
    extends: str | None = None
    """Id of the turn whose prompt and completion the prompt was made from; None: to be found by comparing."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Whole. Of a kept record each is put together anew."""
        return self.fresh or tuple(turn.turn() for turn in self.kept)

    @turns.setter
    def turns(self, turns: tuple[Turn, ...]) -> None:
        self.fresh = turns

    def keep(self, recent: Sequence[KeptTurn]) -> None:
        """Store the turns from where ``recent`` ones end."""
        self.kept, self.fresh = kept(self.fresh, recent, self.extends), ()

    def spoil(self, reason: str) -> None:
        """It was not answered after all, and trains nothing."""
        self.answered = False
        for turn in self.kept:
            turn.spoil(reason)

    @property
    def flaws(self) -> list[str]:
        said = [turn.incomplete for turn in self.fresh] + [turn.incomplete for turn in self.kept]
        return sorted({flaw for flaw in said if flaw is not None})

    @property
    def kept_bytes(self) -> int:
        """Of messages."""
        return len(self.request or b"") + len(self.answer or b"")


def make_record(
    evidence: Evidence, *, call_id: str, index: int, model: str, worker: str, versions: tuple[int, int],
    times: tuple[float, float | None, float], answered: bool, request: bytes | None, answer: bytes | None,
) -> CallRecord:  # fmt: skip
    """The record of a settled call, one turn per choice seen.

    Args:
        versions: policy version at dispatch and at the end.
        times: Unix seconds of receipt, first token and end.
    """
    if not evidence.choices:
        evidence.fail("the engine returned no choices")
        evidence.choice(0)

    def turn(choice: int, flaw: str | None) -> Turn:
        found = evidence.choices[choice]
        return Turn(
            turn_id=f"{call_id}-{choice}", call_id=call_id, index=index, choice=choice,
            prompt_token_ids=evidence.prompt_of(choice) or array(IDS), completion_token_ids=found.ids,
            logprobs=found.logprobs, finish_reason=found.finish_reason, model=model, worker=worker,
            policy_version_start=versions[0], policy_version_end=versions[1],
            started_at=times[0], first_token_at=times[1], ended_at=times[2], incomplete=flaw,
        )  # fmt: skip

    def checked(choice: int) -> Turn:
        try:
            return turn(choice, evidence.flaw(choice))
        except ContractViolation as e:  # what no flaw names and the wire refuses all the same: an id below 0
            return turn(choice, e.detail)

    return CallRecord(
        call_id=call_id, fresh=tuple(checked(choice) for choice in sorted(evidence.choices)),
        prompt_tokens=evidence.prompt_tokens, completion_tokens=evidence.completion_tokens,
        lost_tokens=evidence.lost_tokens, answered=answered, request=request, answer=answer,
        routed_experts={i: c.routed_experts for i, c in evidence.choices.items() if c.routed_experts is not None},
    )  # fmt: skip
