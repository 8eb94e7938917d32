"""What a session store writes down: each change of a session as a record. The other direction is `replay`."""

from __future__ import annotations

import time
from typing import Any

from rollway_gateway.dialects.responses.kept import KeptResponse
from rollway_gateway.exact.standing import Standing
from rollway_gateway.journal import packing, records
from rollway_gateway.journal.entries import Entry
from rollway_gateway.journal.journal import Journal
from rollway_gateway.journal.records import Kind
from rollway_gateway.record import CallRecord
from rollway_gateway.session import Session, SessionCall


class SessionLog:
    """Every method appends and returns at once; `Journal.committed` waits."""

    def __init__(self, journal: Journal, standings: dict[int, dict[str, Any]]) -> None:
        """
        Args:
            standings: written down so far, by number; added to.
        """
        self.journal = journal
        self.standings = standings
        self._numbers = {packing.dumps(said): number for number, said in standings.items()}
        self._seen: dict[int, tuple[Standing, int]] = {}

    def opened(self, session: Session) -> None:
        entry = session.entry = self.journal.open_session(
            session.session_id, session.pool, keeps_messages=session.keeps_messages, opened_at=session.created_at
        )
        tree = {
            "session_id": session.session_id,
            "pool": session.pool,
            "sampling_params": dict(session.sampling_params),
            "metadata": session.metadata,
            "created_at": session.created_at,
            "keeps_messages": session.keeps_messages,
            "budget": [session.budget.prompt, session.budget.response],
        }
        self.journal.append_tree(entry, Kind.OPENED, tree)

    def changed(self, session: Session) -> None:
        tree = {"sampling_params": dict(session.sampling_params), "metadata": session.metadata}
        self.journal.append_tree(session.entry, Kind.CHANGED, tree)

    def begun(self, session: Session, call: SessionCall, index: int) -> None:
        self.journal.append_tree(session.entry, Kind.BEGUN, {"call_id": call.call_id, "index": index})

    def ended(self, session: Session, call: SessionCall, record: CallRecord | None) -> None:
        news = session.fidelity.news(self._number)
        if record is None:
            self.journal.append_tree(session.entry, Kind.FAILED, {"call_id": call.call_id, "fidelity": news})
            return
        tree = records.call_tree(record, call.digest(), news)
        self.journal.append_tree(session.entry, Kind.CALL, tree)

    def outcome(self, session: Session, record: CallRecord, *, unkept: str | None = None) -> None:
        entry = session.entry
        if entry is None or session.state == "gone":
            return
        tree = {
            "call_id": record.call_id,
            "delivered": record.delivered,
            "again": record.sampled_again,
            "unkept": unkept,
        }
        self.journal.append_tree(entry, Kind.OUTCOME, tree)
        entry.confirm(record.call_id)

    def rejoined(self, session: Session) -> None:
        self.journal.append_tree(session.entry, Kind.REJOINED, {})

    def response(self, session: Session, response_id: str, kept: KeptResponse) -> None:
        tree = {"id": response_id, "previous": kept.previous, "added": kept.added.decode()}
        self.journal.append_tree(session.entry, Kind.RESPONSE, tree)

    def spoiled(self, session: Session) -> None:
        self.journal.append_tree(session.entry, Kind.SPOILED, {"reason": session.spoiled})

    def sealed(self, session: Session) -> None:
        entry, at = session.entry, time.time()
        if entry is not None:
            entry.state, entry.sealed_at = "sealed", at
            self.journal.append_tree(entry, Kind.SEALED, {"at": at})

    def archived(self, entry: Entry, key: str) -> None:
        """Its records but the first and last are not needed any more."""
        self.journal.append_tree(entry, Kind.ARCHIVED, {"key": key})
        entry.object_key = key
        self.journal.release_inner(entry)

    def forgotten(self, entry: Entry, *, remember: bool) -> None:
        tree = {"session_id": entry.session_id, "remember": remember}
        self.journal.append_tree(entry, Kind.FORGOTTEN, tree)
        self.journal.release(entry)

    def _number(self, standing: Standing) -> int:
        """Its number; a new one is written down first."""
        seen = self._seen.get(id(standing))
        if seen is not None:
            return seen[1]
        said = standing.as_json()
        key = packing.dumps(said)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers) + 1
            self.standings[number] = said
            self.journal.append_tree(None, Kind.STANDING, {"number": number, "said": said})
        if len(self._seen) > 64:
            self._seen.clear()
        self._seen[id(standing)] = (standing, number)
        return number
