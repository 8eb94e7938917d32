"""A session from its records. Pure: what the store did once, done again in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollway_gateway.dialects.responses.kept import KeptResponse, KeptResponses
from rollway_gateway.exact.budget import Budget
from rollway_gateway.journal import packing, records
from rollway_gateway.journal.entries import Entry
from rollway_gateway.journal.frames import Frame
from rollway_gateway.journal.records import Kind
from rollway_gateway.kept_turn import KeptTurn
from rollway_gateway.record import CallRecord
from rollway_gateway.session import Session
from rollway_gateway.tree.messages import ExactTurn
from rollway_wire.problems import ContractViolation


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes a session may keep of messages and of responses."""

    messages: int
    responses: int


def rebuild(
    entry: Entry, frames: Iterable[Frame], standings: Mapping[int, Mapping[str, Any]], limits: Limits
) -> Session:
    """The session of an entry as it was, with no call in flight.

    A call that began and did not end was in flight when a process ended: it is counted as lost. Of an answer it may not
    be known whether a client took it; it counts as taken, because a client that did not take it asks again and is
    given it.

    Raises:
        ContractViolation: the records do not make a session.
    """
    telling = _Telling(entry, standings, limits)
    try:
        for frame in frames:
            telling.take(frame)
        return telling.session
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise ContractViolation(
            f"session {entry.session_id}: its journal cannot be told again: {type(e).__name__}: {e}"
        ) from e


class _Telling:
    def __init__(self, entry: Entry, standings: Mapping[int, Mapping[str, Any]], limits: Limits) -> None:
        self._entry, self._standings, self._limits = entry, standings, limits
        self._session: Session | None = None
        self._in_flight: dict[str, int] = {}
        self._calls: dict[str, tuple[CallRecord, bytes]] = {}
        self._turns: dict[str, KeptTurn] = {}
        self._exact: dict[str, ExactTurn] = {}
        self._take: dict[int, Callable[[bytes], None]] = {
            Kind.OPENED: self._opened, Kind.CHANGED: self._changed, Kind.BEGUN: self._begun, Kind.CALL: self._call,
            Kind.FAILED: self._failed, Kind.OUTCOME: self._outcome, Kind.REJOINED: self._rejoined,
            Kind.RESPONSE: self._response, Kind.SPOILED: self._spoiled, Kind.SEALED: self._sealed,
            Kind.ARCHIVED: lambda payload: None,
        }  # fmt: skip

    def take(self, frame: Frame) -> None:
        self._take[frame.kind](frame.payload)

    @property
    def session(self) -> Session:
        session = self._now
        session.lost_calls = list(self._in_flight)
        for record, digest in self._calls.values():
            if record.answered and not record.delivered and not record.sampled_again:
                session.unread[digest] = record
        if session.state == "sealed":
            session.unread.clear()
            session.fidelity.seal()
            session.responses.clear()
        return session

    @property
    def _now(self) -> Session:
        assert self._session is not None
        return self._session

    def _opened(self, payload: bytes) -> None:
        said = packing.Packed(payload).tree
        self._session = Session(
            session_id=said["session_id"], pool=said["pool"], sampling_params=said["sampling_params"],
            metadata=said["metadata"], created_at=said["created_at"], keeps_messages=said["keeps_messages"],
            responses=KeptResponses(self._limits.responses), budget=Budget(*said["budget"]), entry=self._entry,
        )  # fmt: skip

    def _changed(self, payload: bytes) -> None:
        said = packing.Packed(payload).tree
        self._now.sampling_params, self._now.metadata = said["sampling_params"], said["metadata"]

    def _begun(self, payload: bytes) -> None:
        said = packing.Packed(payload).tree
        self._in_flight[said["call_id"]] = said["index"]
        self._now.calls_begun = max(self._now.calls_begun, said["index"] + 1)

    def _call(self, payload: bytes) -> None:
        session = self._now
        record, digest, news = records.read_call(payload, self._turns)
        self._turns |= {turn.turn_id: turn for turn in record.kept}
        self._calls[record.call_id] = (record, digest)
        self._in_flight.pop(record.call_id, None)
        session.hold(record)
        session.trim(self._limits.messages)
        session.worker_id = record.kept[-1].worker
        session.calls_begun = max(session.calls_begun, record.kept[0].index + 1)
        self._tell(news)

    def _failed(self, payload: bytes) -> None:
        said = packing.Packed(payload).tree
        self._in_flight.pop(said["call_id"], None)
        self._now.failed_calls += 1
        self._tell(said["fidelity"])

    def _tell(self, news: Mapping[str, Any]) -> None:
        self._now.fidelity.tell(news, self._standings, self._turns, self._exact)

    def _outcome(self, payload: bytes) -> None:
        said = packing.Packed(payload).tree
        record, _ = self._calls[said["call_id"]]
        record.delivered, record.sampled_again = said["delivered"], said["again"]
        if said["unkept"] is not None:
            record.spoil(said["unkept"])

    def _rejoined(self, payload: bytes) -> None:
        self._now.rejoined_calls += 1

    def _response(self, payload: bytes) -> None:
        said = packing.Packed(payload).tree
        self._now.responses.keep(said["id"], KeptResponse(said["previous"], said["added"].encode()))

    def _spoiled(self, payload: bytes) -> None:
        self._now.spoiled = packing.Packed(payload).tree["reason"]

    def _sealed(self, payload: bytes) -> None:
        self._now.state = "sealed"
