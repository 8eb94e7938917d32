"""A turn as a session keeps it: its prompt from where an earlier turn's sampled tokens end."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rollway_wire.tokens import IDS, Turn

RECENT = 64
"""So many of the newest turns are looked at: one that extends an older one keeps its whole prompt."""
_NAMES = tuple(name for name in Turn.__dataclass_fields__ if name != "prompt_token_ids")
_values = attrgetter(*_NAMES)
_AT = {name: i for i, name in enumerate(_NAMES)}
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Turn) if f.default is not dataclasses.MISSING}
OBJECT_BYTES = 1024
"""About what a turn costs besides its tokens."""


class KeptTurn:
    """One turn. `turn` makes it whole."""

    __slots__ = ("_values", "end", "extends", "suffix")

    def __init__(self, extends: KeptTurn | None, suffix: array[int], values: tuple[Any, ...]) -> None:
        """
        Args:
            suffix: int32, the prompt after ``extends``; the whole prompt where it extends nothing.
            values: the turn's other fields, in their order.
        """
        self.extends = extends
        self.suffix = suffix
        self._values = values
        self.end: int = (0 if extends is None else extends.end) + len(suffix) + len(self.completion_token_ids)
        """Tokens of prompt and completion."""

    @classmethod
    def of(cls, extends: KeptTurn | None, suffix: array[int], fields: Mapping[str, Any]) -> KeptTurn:
        """From its fields by name; one that was not yet thought of when they were written has its default.

        Raises:
            KeyError: a field without a default is missing.
        """
        values = tuple(fields[name] if name in fields else _DEFAULTS[name] for name in _NAMES)
        return cls(extends, suffix, values)

    @property
    def turn_id(self) -> str:
        return self._values[_AT["turn_id"]]  # type: ignore[no-any-return]

    @property
    def index(self) -> int:
        return self._values[_AT["index"]]  # type: ignore[no-any-return]

    @property
    def completion_token_ids(self) -> array[int]:
        return self._values[_AT["completion_token_ids"]]  # type: ignore[no-any-return]

    @property
    def ended_at(self) -> float:
        return self._values[_AT["ended_at"]]  # type: ignore[no-any-return]

    @property
    def worker(self) -> str:
        return self._values[_AT["worker"]]  # type: ignore[no-any-return]

    @property
    def incomplete(self) -> str | None:
        return self._values[_AT["incomplete"]]  # type: ignore[no-any-return]

    def spoil(self, reason: str) -> None:
        """It may not train."""
        if self.incomplete is None:
            at = _AT["incomplete"]
            self._values = (*self._values[:at], reason, *self._values[at + 1 :])

    def prompt(self) -> array[int]:
        """int32, the whole prompt."""
        parts = [self.suffix]
        turn = self.extends
        while turn is not None:
            parts += (turn.completion_token_ids, turn.suffix)
            turn = turn.extends
        return array(IDS, b"".join(part.tobytes() for part in reversed(parts)))

    def turn(self) -> Turn:
        return Turn(prompt_token_ids=self.prompt(), **self.fields())

    def fields(self) -> dict[str, Any]:
        """Everything but the prompt."""
        return dict(zip(_NAMES, self._values, strict=True))

    @property
    def size(self) -> int:
        """Bytes in memory, about; a prompt that others share is counted by each."""
        routed = self._values[_AT["routed_experts"]]
        rows = 0 if routed is None else len(routed.data) * routed.data.itemsize
        return OBJECT_BYTES + 4 * len(self.suffix) + 8 * len(self.completion_token_ids) + rows

    def begins(self, prompt: bytes) -> bool:
        """Whether a prompt (bytes of int32) starts with this turn's prompt and completion."""
        at = 4 * self.end
        if len(prompt) < at:
            return False
        turn: KeptTurn | None = self
        while turn is not None:
            for part in (turn.completion_token_ids, turn.suffix):
                at -= 4 * len(part)
                if not prompt.startswith(part, at):
                    return False
            turn = turn.extends
        return True


def kept(turns: Sequence[Turn], recent: Sequence[KeptTurn], made_from: str | None = None) -> tuple[KeptTurn, ...]:
    """The turns of one call, each from where the longest of ``recent`` ends that its prompt extends.

    Args:
        made_from: id of the turn that the prompt was made from: it need not be compared.

    Cost: what is compared is compared by `memcmp`; what is stored is new.
    """
    out: list[KeptTurn] = []
    last: array[int] | None = None
    extends, suffix = None, array(IDS)
    for turn in turns:
        if turn.prompt_token_ids is not last:  # choices of one prompt share it
            last = turn.prompt_token_ids
            extends, suffix = _extended(last, recent, made_from)
        out.append(KeptTurn(extends, suffix, _values(turn)))
    return tuple(out)


def _extended(
    prompt: array[int], recent: Sequence[KeptTurn], made_from: str | None
) -> tuple[KeptTurn | None, array[int]]:
    best: KeptTurn | None = None
    if made_from is not None:
        for turn in reversed(recent):
            if turn.turn_id == made_from:
                return turn, prompt[turn.end :]
    raw = prompt.tobytes()
    for turn in reversed(recent):  # the newest, which is mostly the one, spares looking at shorter ones
        if (best is None or turn.end > best.end) and turn.completion_token_ids and turn.begins(raw):
            best = turn
    return best, prompt if best is None else prompt[best.end :]


class Newest(list[KeptTurn]):
    """A session's newest turns, for `kept`. A list: an empty deque holds room for 64, and there are many sessions."""

    def extend(self, turns: Iterable[KeptTurn]) -> None:
        super().extend(turns)
        del self[:-RECENT]
