"""Routed experts: which experts of a mixture-of-experts model each token went through, so that a trainer can replay it.

Row r holds, for every layer, the expert ids that token r of prompt + completion was routed to when the engine read it.
The last token of a turn has no row: it was sampled and not yet read; the next turn's prompt brings it. A row depends on
its token and those before it alone, so turns that begin alike share rows: a turn stores those from ``start`` on, and
names the turn that holds the ones before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rollway_wire.problems import ContractViolation

DTYPES = {"uint8": "B", "uint16": "H"}
"""Element types by name: engines take the smaller one up to 256 experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """Rows ``start`` to ``end`` - 1 of one turn.

    Raises:
        ContractViolation: of another element type, without layers or experts, without rows or with a part of one, or
            with a ``start`` that does not agree with ``after``.
    """

    start: int = 0
    """The first row here."""
    after: str | None = None
    """Id of the turn that holds the rows before ``start``, itself or by its own ``after``; None: there are none."""
    layers: int
    top_k: int
    """Experts per token and layer."""
    data: array[int]
    """Expert ids, uint8 ('B') or uint16 ('H'), shape (rows, layers, top_k), the last axis closest together."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, array) or self.data.typecode not in DTYPES.values():
            raise ContractViolation(f"routed experts must be array('B') or array('H'), got {type(self.data).__name__}")
        if self.layers < 1 or self.top_k < 1 or not self.data or len(self.data) % self.width:
            raise ContractViolation(
                f"{len(self.data)} expert ids are no rows of {self.layers} layers with {self.top_k} experts each"
            )
        if self.start < 0 or (self.start == 0) != (self.after is None):
            raise ContractViolation(f"routed experts from row {self.start} on, after turn {self.after}")

    @property
    def width(self) -> int:
        """Expert ids in a row."""
        return self.layers * self.top_k

    @property
    def rows(self) -> int:
        return len(self.data) // self.width

    @property
    def end(self) -> int:
        """Past the last row."""
        return self.start + self.rows

    @property
    def dtype(self) -> str:
        return "uint8" if self.data.typecode == "B" else "uint16"

    @property
    def form(self) -> tuple[int, int, str]:
        """What rows that stand together have in common: layers, experts per token, element type."""
        return self.layers, self.top_k, self.data.typecode

    def part(self, start: int, end: int) -> array[int]:
        """Expert ids of rows ``start`` to ``end`` - 1, which must be here."""
        return self.data[(start - self.start) * self.width : (end - self.start) * self.width]


class Rows(NamedTuple):
    """Rows ``start`` to ``end`` - 1 of a sequence: they are those of this turn, stored there."""

    turn_id: str
    start: int
    end: int


def check_spans(spans: Iterable[Rows], tokens: int) -> None:
    """That spans hold a row for each of so many tokens but the last.

    Raises:
        ContractViolation: a gap, an overlap, an empty span, or another length.
    """
    at = 0
    for span in spans:
        if span.start != at or span.end <= at:
            raise ContractViolation(f"a sequence's routed experts go on from row {at} with {tuple(span)}")
        at = span.end
    if at != tokens - 1:
        raise ContractViolation(f"a sequence of {tokens} tokens has {at} rows of routed experts, not {tokens - 1}")


def joined(parts: Iterable[tuple[RoutedExperts, Rows]]) -> RoutedExperts:
    """All rows of a sequence in one piece; ``parts`` are its spans with the values they name."""
    found = list(parts)
    first = found[0][0]
    data = array(first.data.typecode)
    for value, span in found:
        data.extend(value.part(span.start, span.end))
    return RoutedExperts(layers=first.layers, top_k=first.top_k, data=data)
