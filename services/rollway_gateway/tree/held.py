"""What a session holds of routed experts: which rows of a prompt need not be asked for, nor stored, again."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from rollway_wire.tokens import Turn

RECENT = 8
"""So many of the newest turns are looked at: an older one that would share more costs its rows a second time."""


class Ahead(NamedTuple):
    """Rows 0 to ``start`` - 1 of a prompt are held by turn ``after``."""

    start: int
    after: str | None


NOTHING = Ahead(0, None)


class Held:
    """Of one session. Rows count as held under one policy version: another routes the same tokens otherwise."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []  # an empty deque has room for 64, and most sessions have none

    def add(self, turn: Turn) -> None:
        """A turn with routed experts."""
        self._turns.append(turn)
        del self._turns[:-RECENT]

    @property
    def size(self) -> int:
        """Bytes of whole prompts; rows and sampled ids are the session's turns' too."""
        return sum(4 * len(turn.prompt_token_ids) for turn in self._turns)

    def ahead(self, prompt_ids: array[int], version: int) -> Ahead:
        """How much of a prompt is held. Never all of it: an engine asked to skip a whole prompt fails.

        Cost: where the prompt extends the newest turn, one `memcmp` of it.
        """
        prompt = prompt_ids.tobytes()
        best = NOTHING
        for turn in reversed(self._turns):
            if not turn.policy_version_start == turn.policy_version_end == version:
                continue
            shared = _shared(prompt, turn)
            start = min(shared, turn.length - 1, len(prompt_ids) - 1)
            if start > best.start:
                best = Ahead(start, turn.turn_id)
            if shared == turn.length:
                break
        return best


def _shared(prompt: bytes, turn: Turn) -> int:
    """Leading tokens that a prompt has in common with a turn."""
    if not prompt.startswith(turn.prompt_token_ids):
        return _common(prompt, turn.prompt_token_ids.tobytes())
    size = len(turn.prompt_token_ids)
    return size + _common(prompt[4 * size :], turn.completion_token_ids.tobytes())


def _common(a: bytes, b: bytes) -> int:
    """Leading int32 tokens in common, by halves."""
    lo, hi = 0, min(len(a), len(b)) // 4
    if a.startswith(b):
        return hi
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if a[4 * lo : 4 * mid] == b[4 * lo : 4 * mid]:
            lo = mid
        else:
            hi = mid - 1
    return lo
