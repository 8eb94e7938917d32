"""From turns to a trajectory: sequences that train every sampled token once, and a ledger that closes."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Turns
from typing import Any, Literal

from rollway_gateway.tree.chains import chains
from rollway_gateway.tree.drift import drifts
from rollway_gateway.tree.forest import Forest
from rollway_gateway.tree.routing import routing
from rollway_wire.problems import ContractViolation
from rollway_wire.tokens import LOGPROBS, MASK, NO_VERSION, VERSIONS, Ledger, Sequence, Trajectory, Turn


def cut(
    session_id: str,
    turns: Turns[Turn],
    *,
    mode: Literal["mirror", "exact"] = "mirror",
    lost_tokens: int = 0,
    duplicate: Collection[str] = (),
    orphaned: Collection[str] = (),
    metadata: Mapping[str, Any] | None = None,
    incomplete: str | None = None,
) -> Trajectory:
    """The trajectory of one session.

    Each token of each complete turn has mask 1 in exactly one sequence; a sequence's other tokens are context (mask 0,
    log-prob 0.0, version -1). There are as few sequences as that allows; they are ordered by the end of their last
    trained turn. A token is stamped with the version its call was dispatched under, also where weights changed in the
    middle: it never passes for fresher than it is. Where turns carry routed experts, a sequence says where its rows
    are, or why they are not all there (`routing.routing`).

    Args:
        turns: of this session, any order. Incomplete ones train nothing: their tokens count as lost, and are context
            where a later prompt holds them.
        lost_tokens: tokens that the engine's usage reported and no turn holds.
        duplicate, orphaned: ids of incomplete turns whose evidence is whole, and which bucket of the ledger they go to:
            answers that never reached the agent, asked for again later or not.
        metadata: kept; ``drift`` (count) and ``drift_events`` (`drift.DriftEvent` as objects) are added.
        incomplete: why the session may not train as a whole. The caller's judgement: incomplete turns alone do not
            set it.

    Raises:
        ContractViolation: two turns share an id, ``lost_tokens`` is negative, or a turn's routed experts go on from
            rows that are not there.
    """
    if len({t.turn_id for t in turns}) != len(turns):
        raise ContractViolation(f"session {session_id}: two turns share a turn_id")
    if lost_tokens < 0:
        raise ContractViolation(f"session {session_id}: lost_tokens is {lost_tokens}")
    forest = Forest(turns)
    paths = [[forest.turns[p] for p in chain] for chain in chains(forest)]
    paths.sort(key=lambda path: (path[-1].ended_at, path[-1].index, path[-1].choice))
    by_id = {turn.turn_id: turn for turn in turns}
    sequences = tuple(_sequence(path, by_id) for path in paths)
    events = drifts(forest)
    return Trajectory(
        session_id=session_id,
        mode=mode,
        turns=tuple(sorted(turns, key=lambda t: (t.index, t.choice))),
        sequences=sequences,
        ledger=_ledger(turns, sequences, lost_tokens, frozenset(duplicate), frozenset(orphaned)),
        incomplete=incomplete,
        metadata={
            **(metadata or {}),
            "drift": len(events),
            "drift_events": [dataclasses.asdict(event) for event in events],
        },
    )


def uncut(
    session_id: str, turns: Turns[Turn], reason: str, *, lost_tokens: int, metadata: Mapping[str, Any]
) -> Trajectory:
    """The trajectory of turns that contradict each other: all of them, no sequence, every token lost.

    Args:
        reason: the contradiction. Routed experts are left out with it: what they go on from may be part of it.
    """
    lost = sum(len(t.completion_token_ids) for t in turns) + max(0, lost_tokens)
    bare = [dataclasses.replace(t, routed_experts=None, unrouted=reason) if t.routed_experts else t for t in turns]
    return Trajectory(
        session_id=session_id, mode="mirror", turns=tuple(bare), sequences=(), ledger=Ledger(sampled=lost, lost=lost),
        incomplete=f"the evidence contradicts itself: {reason}", metadata=dict(metadata),
    )  # fmt: skip


def _sequence(path: list[Turn], turns: Mapping[str, Turn]) -> Sequence:
    token_ids = path[-1].prompt_token_ids + path[-1].completion_token_ids
    n = len(token_ids)
    loss_mask = array(MASK, bytes(n))
    logprobs: array[float] = array(LOGPROBS, bytes(4 * n))
    versions = array(VERSIONS, [NO_VERSION]) * n
    for turn in path:
        size = len(turn.completion_token_ids)
        span = slice(len(turn.prompt_token_ids), len(turn.prompt_token_ids) + size)
        loss_mask[span] = array(MASK, b"\x01" * size)
        logprobs[span] = turn.logprobs
        versions[span] = array(VERSIONS, [turn.policy_version_start]) * size
    spans, unrouted = routing(path, turns)
    return Sequence(
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        policy_versions=versions,
        turn_ids=tuple(turn.turn_id for turn in path),
        routing=spans,
        unrouted=unrouted,
    )


def _ledger(
    turns: Turns[Turn], sequences: tuple[Sequence, ...], lost_tokens: int, duplicate: frozenset[str],
    orphaned: frozenset[str],
) -> Ledger:  # fmt: skip
    """Counted from both ends, turns and masks: `Ledger` refuses them when they disagree."""

    def tokens(found: Iterable[Turn]) -> int:
        return sum(len(t.completion_token_ids) for t in found)

    untrained = [t for t in turns if t.incomplete is not None]
    return Ledger(
        sampled=tokens(turns) + lost_tokens,
        trained=sum(s.trained_tokens for s in sequences),
        duplicate=tokens(t for t in untrained if t.turn_id in duplicate),
        orphaned=tokens(t for t in untrained if t.turn_id in orphaned - duplicate),
        lost=tokens(t for t in untrained if t.turn_id not in duplicate | orphaned) + lost_tokens,
    )
