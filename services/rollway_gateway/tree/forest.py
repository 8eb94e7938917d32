"""Which turn extends which: turn B extends turn A when A's prompt + completion is an exact token prefix of B's prompt.

Prompts are compared as bytes of int32 (four bytes a token, so a byte prefix of whole tokens is a token prefix). Sorted
bytewise, all prompts that extend one turn stand side by side; a turn's extensions are a range of positions, found by
bisection with `memcmp`. Two such ranges are nested or disjoint, as subtrees are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from rollway_wire.tokens import Turn


class Gaps:
    """Positions 0 to n-1, each free until taken. Walking the free ones of a range skips taken runs (union-find)."""

    def __init__(self, n: int) -> None:
        self._next = list(range(n + 1))

    def take(self, i: int) -> None:
        self._next[i] = i + 1

    def within(self, lo: int, hi: int) -> Iterator[int]:
        i = self._first(lo)
        while i < hi:
            yield i
            i = self._first(i + 1)

    def _first(self, i: int) -> int:
        end = i
        while self._next[end] != end:
            end = self._next[end]
        while self._next[i] != end:
            self._next[i], i = end, self._next[i]
        return end


class Forest:
    """The turns of one session with their extensions.

    A *position* is a turn's place in the bytewise order of prompts; it names the turn from here on.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        """Cost: a sort and two bisections a turn, each step one `memcmp` of at most a prompt."""
        keyed = sorted((t.prompt_token_ids.tobytes(), t.index, t.choice, i) for i, t in enumerate(turns))
        self.prompts = [key for key, *_ in keyed]
        self.turns = [turns[i] for *_, i in keyed]
        self.extensions = [self._range(p) for p in range(len(keyed))]
        """For each position the half-open range of positions whose prompts extend it."""
        self.parents = self._parents()
        """For each position the position it extends, the longest one; None for a root."""

    def length(self, position: int) -> int:
        """Tokens of prompt and completion."""
        turn = self.turns[position]
        return len(turn.prompt_token_ids) + len(turn.completion_token_ids)

    def deepest_first(self) -> list[int]:
        """Positions by falling length; of equal ones the earlier call first."""
        return sorted(
            range(len(self.turns)), key=lambda p: (-self.length(p), self.turns[p].index, self.turns[p].choice, p)
        )

    def _range(self, position: int) -> tuple[int, int]:
        sampled = self.turns[position].completion_token_ids.tobytes()
        if not sampled:
            return (position, position)
        whole = self.prompts[position] + sampled
        lo = bisect_left(self.prompts, whole)
        return lo, bisect_left(self.prompts, True, lo=lo, key=lambda prompt: not prompt.startswith(whole))

    def _parents(self) -> list[int | None]:
        parents: list[int | None] = [None] * len(self.turns)
        orphans = Gaps(len(self.turns))
        for p in self.deepest_first():
            for child in orphans.within(*self.extensions[p]):
                parents[child] = p
                orphans.take(child)
        return parents
