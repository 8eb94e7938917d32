"""Where the records of sessions lie: the journal's index, kept in memory. Pure.

A session that is not in memory is its entry here: about 16 bytes a record.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

ANSWERS_KEPT = 4
"""Whole answers a session keeps, the latest, for clients that ask again."""


class Place(NamedTuple):
    """A frame: ``size`` bytes at ``offset`` of a segment."""

    segment: int
    offset: int
    size: int


@dataclass(slots=True, eq=False)
class Answered:
    """A whole answer that lies in the journal."""

    place: Place
    call_id: str
    ended_at: float
    """Unix seconds."""
    confirmed: bool = False
    """It is known whether a client took it. If not, the process ended before that was written."""


@dataclass(slots=True, eq=False)
class Entry:
    """One session's records, in their order."""

    number: int
    session_id: str
    pool: str
    keeps_messages: bool
    opened_at: float
    state: str = "open"
    """open or sealed."""
    sealed_at: float | None = None
    object_key: str | None = None
    """Of the trajectory, once it is in the object store; its records are then released."""
    records: int = 0
    """Ever appended."""
    last_sequence: int = 0
    """Of the latest."""
    answers: OrderedDict[bytes, Answered] = field(default_factory=OrderedDict)
    """By digest of the request."""
    _at: array[int] = field(default_factory=lambda: array("Q"))
    _sizes: array[int] = field(default_factory=lambda: array("I"))

    def add(self, place: Place) -> None:
        self._at.append(place.segment << 40 | place.offset)
        self._sizes.append(place.size)
        self.records += 1

    def places(self) -> Iterator[Place]:
        """Of what the session is made from; not of whole answers."""
        for at, size in zip(self._at, self._sizes, strict=True):
            yield Place(at >> 40, at & (1 << 40) - 1, size)

    def all_places(self) -> Iterator[Place]:
        yield from self.places()
        for answered in self.answers.values():
            yield answered.place

    def holds(self, place: Place) -> bool:
        """The frame is still this entry's."""
        return place.segment << 40 | place.offset in self._at or any(a.place == place for a in self.answers.values())

    def move(self, old: Place, new: Place) -> bool:
        """A frame was copied. False: it is no longer this entry's."""
        for answered in self.answers.values():
            if answered.place == old:
                answered.place = new
                return True
        try:
            at = self._at.index(old.segment << 40 | old.offset)
        except ValueError:
            return False
        self._at[at] = new.segment << 40 | new.offset
        return True

    def keep_answer(self, digest: bytes, answered: Answered) -> list[Place]:
        """Keep the latest few; returns where those lie that are not kept any more."""
        dropped = [old.place] if (old := self.answers.pop(digest, None)) is not None else []
        self.answers[digest] = answered
        while len(self.answers) > ANSWERS_KEPT:
            dropped.append(self.answers.popitem(last=False)[1].place)
        return dropped

    def confirm(self, call_id: str) -> None:
        for answered in self.answers.values():
            if answered.call_id == call_id:
                answered.confirmed = True

    def take_inner(self) -> list[Place]:
        """Give up all places but the first and the last."""
        places = list(self.places())
        inner = [*places[1:-1], *(answered.place for answered in self.answers.values())]
        self._at, self._sizes = self._at[:1] + self._at[-1:], self._sizes[:1] + self._sizes[-1:]
        self.answers.clear()
        return inner

    def clear(self) -> None:
        self._at, self._sizes = array("Q"), array("I")
        self.answers.clear()
