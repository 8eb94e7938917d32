"""DriftEvent: a prompt that continues an earlier prompt but not the tokens that were sampled after it.

In mirror mode the engine renders the whole history anew each turn. Where the re-rendered answer differs from the
sampled tokens (re-tokenised words, re-serialised tool calls, dropped reasoning) the session breaks into branches. An
agent that edits an earlier answer leaves the same trace: tokens alone cannot tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollway_gateway.tree.forest import Forest


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftEvent:
    """One turn whose prompt left an earlier turn's completion before its end."""

    turn_id: str
    """The turn that should have extended."""
    earlier_turn_id: str
    """The turn whose completion its prompt left."""
    kept_tokens: int
    """How many sampled tokens the prompt still holds before it leaves."""
    sampled_tokens: int
    """How many there were."""


def drifts(forest: Forest) -> list[DriftEvent]:
    """Every drift of a session, in the order of calls.

    A turn drifts when the longest earlier prompt that its own prompt strictly continues belongs to turns none of which
    it extends. So a retry, another choice, or a branch that extends some other sampling of that prompt is no drift.
    """
    found = []
    line: list[int] = []  # positions whose prompts are prefixes of the present one, shortest first
    for p, prompt in enumerate(forest.prompts):
        while line and not prompt.startswith(forest.prompts[line[-1]]):
            line.pop()
        earlier = _continued(forest, line, p)
        parent = forest.parents[p]
        held = 0 if parent is None else forest.length(parent)
        if earlier and len(forest.turns[earlier[0]].prompt_token_ids) >= held:
            found.append((forest.turns[p].index, forest.turns[p].choice, _drift(forest, earlier, p)))
        line.append(p)
    return [drift for *_, drift in sorted(found, key=lambda f: f[:2])]


def _continued(forest: Forest, line: list[int], p: int) -> list[int]:
    """Complete turns before ``p`` at the longest prompt that the prompt of ``p`` strictly continues."""
    out: list[int] = []
    for q in reversed(line):
        size = len(forest.prompts[q])
        if out and size < len(forest.prompts[out[0]]):
            break
        turn = forest.turns[q]
        if size < len(forest.prompts[p]) and turn.index < forest.turns[p].index and turn.incomplete is None:
            out.append(q)
    return out


def _drift(forest: Forest, earlier: list[int], p: int) -> DriftEvent:
    prompt = forest.turns[p].prompt_token_ids
    start = len(forest.turns[earlier[0]].prompt_token_ids)

    def kept(q: int) -> int:
        sampled = forest.turns[q].completion_token_ids
        pairs = zip(prompt[start : start + len(sampled)], sampled, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prompt) - start, len(sampled)))

    nearest = max(earlier, key=lambda q: (kept(q), forest.turns[q].index))
    turn = forest.turns[nearest]
    return DriftEvent(
        turn_id=forest.turns[p].turn_id,
        earlier_turn_id=turn.turn_id,
        kept_tokens=kept(nearest),
        sampled_tokens=len(turn.completion_token_ids),
    )
