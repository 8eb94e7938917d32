"""Where a sequence's routed experts are: for each of its tokens but the last, the turn that holds the row.

A row comes from the earliest turn of the sequence that reported it, so what a turn sampled is replayed as it was routed
then. A turn that reported none gets its rows from the next one that did, whose prompt holds its tokens; not under
another policy version, though, where the same tokens are routed otherwise. Rows before a turn's own are found by its
``after``, through turns of other sequences too. Whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollway_wire.problems import ContractViolation
from rollway_wire.routing import Rows
from rollway_wire.tokens import Turn


def routing(path: list[Turn], turns: Mapping[str, Turn]) -> tuple[tuple[Rows, ...] | None, str | None]:
    """Spans of the sequence that these turns make, or why it has none; neither where no routed experts were kept.

    Args:
        path: the sequence's turns, each extending the one before.
        turns: all of the session by id.

    Raises:
        ContractViolation: a turn's ``after`` is no turn of the session, or does not hold the rows before it.
    """
    if all(turn.routed_experts is None and turn.unrouted is None for turn in path):
        return None, None
    spans: list[Rows] = []
    waiting: list[Turn] = []
    for turn in path:
        if turn.routed_experts is None:
            waiting.append(turn)
            continue
        for earlier in waiting:
            if not _same_version(earlier, turn):
                return None, f"{_why(earlier)}, and later prompts were routed under another policy version"
        waiting.clear()
        at = spans[-1].end if spans else 0
        spans += reversed(list(_back(turn, at, turns)))
    if waiting:
        return None, _why(waiting[-1])
    return _alike(spans, turns)


def _why(turn: Turn) -> str:
    return f"turn {turn.turn_id}: {turn.unrouted or 'its routed experts were not kept'}"


def _same_version(earlier: Turn, later: Turn) -> bool:
    versions = (earlier.policy_version_start, earlier.policy_version_end, later.policy_version_start)
    return set(versions) == {later.policy_version_end}


def _back(turn: Turn, start: int, turns: Mapping[str, Turn]) -> Iterator[Rows]:
    """The turn's rows from ``start`` on, the last ones first."""
    holder: Turn | None = turn
    end = turn.length - 1
    while end > start:
        routed = None if holder is None else holder.routed_experts
        if holder is None or routed is None or routed.end < end:
            raise ContractViolation(f"turn {turn.turn_id}: nothing holds its routed experts before row {end}")
        if routed.start < end:
            begin = max(start, routed.start)
            yield Rows(holder.turn_id, begin, end)
            end = begin
        holder = turns.get(routed.after or "")


def _alike(spans: list[Rows], turns: Mapping[str, Turn]) -> tuple[tuple[Rows, ...] | None, str | None]:
    forms = {routed.form for span in spans if (routed := turns[span.turn_id].routed_experts) is not None}
    if len(forms) > 1:
        return None, f"its turns were routed in different forms: {sorted(forms)}"
    return tuple(spans), None
