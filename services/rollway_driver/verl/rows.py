"""One finished rollout into the rows verl trains on, or the reason why it gives none. Pure.

A row is one sequence of the trajectory, cut where the policy's first token stands: before it the prompt, from it on the
response, in which mask 1 marks sampled tokens. The last row of a session carries its score: verl's GRPO takes the group
statistics from the last rows and gives each session's advantage to all its rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollway_driver.verl.trainer_facts import Budget
from rollway_wire.batch import RolloutResult, RolloutState
from rollway_wire.failures import FailureType
from rollway_wire.routing import RoutedExperts
from rollway_wire.tokens import Ledger, Sequence, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Token ids int32, log-probs float32 (0.0 where mask is 0), mask uint8."""

    prompt_ids: array[int]
    response_ids: array[int]
    response_mask: array[int]
    logprobs: array[float]
    routed_experts: RoutedExperts | None = None
    """A row for each token but the last, where the trainer replays routing."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A rollout that trains: at least one row, one score."""

    index: int
    """0 to n-1 within the group; verl's session_id."""
    session_id: str
    score: float
    turns: int
    """Model calls."""
    rows: tuple[Row, ...]
    trained_tokens: int
    ledger: Ledger
    exact_turns: int
    """Turns whose prompt was what had been prompted and sampled before plus what was new, as the gateway counts."""
    mirror_reason: str | None = None
    """Why the gateway did not serve the session in exact mode; None: it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A rollout that does not train, and why: a failure type of the wire's, or one of ours."""

    index: int
    session_id: str | None
    type: str
    message: str


OVER_BUDGET = "over_budget"
"""A row is longer than the trainer's memory is planned for: refused whole, never cut."""
STALE_POLICY = "stale_policy"
"""A token was sampled under other weights than this step's."""
SEVERAL_SEQUENCES = "several_sequences"
"""Several rows, but the advantage estimator takes each row for a session of its own."""
NOT_ROUTED = "not_routed"
"""A row lacks routed experts although the trainer replays them: it would train on another routing than was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """What every row of a batch must keep to."""

    policy_version: int
    budget: Budget
    group_relative: bool
    routing_replay: bool = False
    reward: Literal["last", "sum"]


def read_session(result: RolloutResult, trajectory: Trajectory | None, rules: RowRules) -> Session | Refusal:
    """The rows of one rollout, or why it has none."""

    def refuse(kind: str, message: str) -> Refusal:
        return Refusal(index=result.index, session_id=result.session_id, type=str(kind), message=message)

    if result.failure is not None:
        return refuse(result.failure.type, result.failure.message)
    if result.state is not RolloutState.SUCCEEDED:
        return refuse(result.state, f"the rollout ended as {result.state}")
    if not result.rewards:
        return refuse(FailureType.CONTRACT_ERROR, "the rollout succeeded without rewards")
    if trajectory is None or not trajectory.sequences:
        return refuse(FailureType.NO_TURNS, "nothing was captured: does the agent call _rollout.base_url?")
    if trajectory.incomplete is not None:
        return refuse(FailureType.INCOMPLETE_CAPTURE, trajectory.incomplete)
    if len(trajectory.sequences) > 1 and not rules.group_relative:
        return refuse(SEVERAL_SEQUENCES, f"{len(trajectory.sequences)} sequences need algorithm.adv_estimator=grpo")
    stale = _stale(trajectory.sequences, rules.policy_version)
    if stale is not None:
        return refuse(STALE_POLICY, f"sampled under policy {stale}, this batch is policy {rules.policy_version}'s")
    if rules.routing_replay and (why := _unrouted(trajectory)) is not None:
        return refuse(NOT_ROUTED, why)
    rows = tuple(
        cut_row(s, trajectory.routed_experts(s) if rules.routing_replay else None) for s in trajectory.sequences
    )
    longest = max(row.length for row in rows)
    if longest > rules.budget.prompt + rules.budget.response:
        return refuse(
            OVER_BUDGET,
            f"a row of {longest} tokens is over max_prompt_length + max_response_length = "
            f"{rules.budget.prompt} + {rules.budget.response}; raise them, or set rollout.max_model_len to their sum",
        )
    return Session(
        index=result.index,
        session_id=trajectory.session_id,
        score=score(result.rewards, rules.reward),
        turns=len(trajectory.turns),
        rows=rows,
        trained_tokens=sum(s.trained_tokens for s in trajectory.sequences),
        ledger=trajectory.ledger,
        exact_turns=_exact_turns(trajectory.metadata),
        mirror_reason=None if trajectory.mode == "exact" else str(trajectory.metadata.get("mode_reason", "not said")),
    )


def _exact_turns(metadata: Mapping[str, Any]) -> int:
    """The gateway's count; a gateway that does not count proves none."""
    fidelity = metadata.get("fidelity")
    return int(fidelity["exact"]) if isinstance(fidelity, Mapping) else 0


def _unrouted(trajectory: Trajectory) -> str | None:
    """Why a sequence has no routed experts; None: all have."""
    for s in trajectory.sequences:
        if s.routing is None:
            return s.unrouted or "the gateway kept no routed experts: is the worker registered with routed_experts?"
    return None


def cut_row(sequence: Sequence, routed_experts: RoutedExperts | None = None) -> Row:
    """The row of one sequence: cut before its first trained token; what follows its last trained token is left out."""
    first = sequence.prompt_length
    end = len(sequence.loss_mask) - sequence.loss_mask[::-1].index(1)
    return Row(
        prompt_ids=sequence.token_ids[:first],
        response_ids=sequence.token_ids[first:end],
        response_mask=sequence.loss_mask[first:end],
        logprobs=sequence.logprobs[first:end],
        routed_experts=None if routed_experts is None else _before(routed_experts, end - 1),
    )


def _before(routed: RoutedExperts, end: int) -> RoutedExperts:
    return routed if routed.end == end else replace(routed, data=routed.part(0, end))


def score(rewards: Seq[float], rule: Literal["last", "sum"]) -> float:
    """One score of an agent's rewards."""
    return float(rewards[-1] if rule == "last" else sum(rewards))


def _stale(sequences: Seq[Sequence], version: int) -> int | None:
    """A policy version other than ``version`` that a trained token was sampled under, if there is one."""
    for s in sequences:
        for mask, sampled in zip(s.loss_mask, s.policy_versions, strict=True):
            if mask and sampled != version:
                return sampled
    return None
