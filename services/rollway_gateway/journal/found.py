"""What a folder holds when a process starts on it: entries of sessions, and what is no session's."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from rollway_gateway.journal import packing, records
from rollway_gateway.journal.disk import Disk
from rollway_gateway.journal.entries import Answered, Entry, Place
from rollway_gateway.journal.frames import Frame, size_of
from rollway_gateway.journal.problems import JournalRefused
from rollway_gateway.journal.records import Kind


@dataclass(slots=True)
class Found:
    """The next numbers are those that nothing in the folder has."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """By session id; sessions that were forgotten are not there."""
    calls: dict[str, str] = field(default_factory=dict)
    """Session ids by call, of sessions that keep messages."""
    pools: list[dict[str, Any]] = field(default_factory=list)
    gone: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Ids of sessions forgotten for good."""
    standings: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_session: int = 1
    next_sequence: int = 1
    next_segment: int = 1
    sizes: Counter[int] = field(default_factory=Counter)
    live: Counter[int] = field(default_factory=Counter)
    """Bytes of each segment, and those still needed."""


@dataclass(slots=True)
class _Record:
    kind: int
    place: Place
    head: Any


def scan(disk: Disk) -> Found:
    """Read every segment once. Blocking.

    Raises:
        JournalRefused: the journal is damaged, but for a torn end, which is cut off and logged.
    """
    found = Found()
    by_session: dict[int, dict[int, _Record]] = {}
    loose: dict[int, Frame] = {}
    numbers = disk.numbers()
    for number in numbers:
        for at, frame in disk.scan(number, last=number == numbers[-1]):
            place = Place(number, at, size_of(len(frame.payload)))
            found.sizes[number] += place.size
            if frame.session == 0:
                loose[frame.sequence] = frame
            else:
                by_session.setdefault(frame.session, {})[frame.sequence] = _Record(frame.kind, place, _head(frame))
            found.next_sequence = max(found.next_sequence, frame.sequence + 1)
            found.next_session = max(found.next_session, frame.session + 1)
    found.next_segment = (numbers[-1] if numbers else 0) + 1
    for number in disk.numbers():
        found.sizes.setdefault(number, 0)
    happened: list[tuple[int, str, Any]] = [(at, "loose", frame) for at, frame in loose.items()]
    for session, by_sequence in by_session.items():
        in_order = [by_sequence[s] for s in sorted(by_sequence)]
        entry = _entry(session, in_order, found)
        if entry is not None:
            happened.append((min(by_sequence), "opened", entry))
        if (last := in_order[-1]).kind == Kind.FORGOTTEN:
            happened.append((max(by_sequence), "forgotten", last.head))
    for _, what, value in sorted(happened, key=lambda h: h[0]):
        _replay(found, what, value)
    for entry in found.entries.values():
        for place in entry.all_places():
            found.live[place.segment] += place.size
    return found


def _replay(found: Found, what: str, value: Any) -> None:
    if what == "opened":
        found.entries[value.session_id] = value
        found.gone.pop(value.session_id, None)
    elif what == "forgotten":
        found.entries.pop(value["session_id"], None)
        if value["remember"]:
            found.gone[value["session_id"]] = None
    else:
        _take_loose(found, value)


_HEADS = (Kind.OPENED, Kind.SEALED, Kind.ARCHIVED, Kind.FORGOTTEN, Kind.CALL, Kind.OUTCOME, Kind.ANSWER)


def _head(frame: Frame) -> Any:
    """What the index needs of a record."""
    if frame.kind not in _HEADS:
        return None
    try:
        if frame.kind == Kind.ANSWER:
            return records.answer_of(frame.payload)
        tree = packing.Packed(frame.payload).tree
        return tree["call_id"] if frame.kind in (Kind.CALL, Kind.OUTCOME) else tree
    except (ValueError, KeyError, TypeError) as e:
        raise JournalRefused(f"a record of kind {frame.kind} cannot be read: {type(e).__name__}: {e}") from e


def _take_loose(found: Found, frame: Frame) -> None:
    tree = packing.Packed(frame.payload).tree
    if frame.kind == Kind.GLOBALS:
        found.pools = tree["pools"]
        found.gone = OrderedDict.fromkeys(tree["gone"])
        found.standings |= {int(number): said for number, said in tree["standings"].items()}
    elif frame.kind == Kind.POOLS:
        found.pools = tree["pools"]
    elif frame.kind == Kind.STANDING:
        found.standings[tree["number"]] = tree["said"]


def _entry(session: int, in_order: list[_Record], found: Found) -> Entry | None:
    first = in_order[0]
    if first.kind != Kind.OPENED:
        # Records of a session whose beginning was deleted with its segment: it was over by then.
        return None
    said = first.head
    entry = Entry(session, said["session_id"], said["pool"], said["keeps_messages"], said["created_at"])
    for record in in_order:
        if record.kind == Kind.ANSWER:
            digest, call_id, ended_at = record.head
            entry.keep_answer(digest, Answered(record.place, call_id, ended_at))
            continue
        entry.add(record.place)
        if record.kind == Kind.SEALED:
            entry.state, entry.sealed_at = "sealed", record.head["at"]
        elif record.kind == Kind.ARCHIVED:
            entry.object_key = record.head["key"]
        elif record.kind == Kind.OUTCOME:
            entry.confirm(record.head)
        elif record.kind == Kind.CALL and entry.keeps_messages:
            found.calls[record.head] = entry.session_id
    return entry
