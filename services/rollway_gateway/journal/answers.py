"""Whole answers in the journal: written with the call, read for a client that asks again."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog
from starlette.types import Message

from rollway_gateway.journal import records
from rollway_gateway.journal.entries import Entry
from rollway_gateway.journal.problems import JournalDown
from rollway_gateway.journal.records import KeptAnswerBytes
from rollway_gateway.session import Session
from rollway_gateway.store import SessionStore

log = structlog.get_logger()

ANSWER_BYTES = 4 * 2**20
"""A larger answer is not kept: one that asks for it again after a restart gets another sample."""
_STARTED_AT = time.time()


def keep_messages(
    store: SessionStore, session: Session, call_id: str, digest: bytes, messages: Sequence[Message]
) -> None:
    """Put an answer in line behind its call's record."""
    journal, entry = store.journal, session.entry
    if journal is None or entry is None or store.find(session.session_id) is not session:
        return
    start, *rest = messages
    body = b"".join(message.get("body", b"") for message in rest)
    if len(body) > ANSWER_BYTES:
        return
    kept = KeptAnswerBytes(digest, call_id, time.time(), start["status"], start["headers"], body)
    journal.append_answer(entry, kept)


async def kept_answer(
    store: SessionStore, session: Session, digest: bytes, says_retry: bool, grace_s: float
) -> KeptAnswerBytes | None:
    """The answer that a request is to get once more, None: it is an ask of its own.

    That of an equal request, for ``grace_s`` after it ended or after this process started: for a client that says that
    it asks again, and where the process ended before it was written whether the answer was taken.
    """
    journal, entry = store.journal, session.entry
    found = None if entry is None else entry.answers.get(digest)
    if journal is None or entry is None or found is None or session.state != "open":
        return None
    unknown = not found.confirmed and found.ended_at < _STARTED_AT
    fresh = time.time() - max(found.ended_at, _STARTED_AT) < grace_s
    if not fresh or not (says_retry or unknown):
        return None
    try:
        (frame,) = await journal.read([found.place])
    except JournalDown as e:
        log.warning("answer_not_read", session_id=session.session_id, call_id=found.call_id, detail=e.detail)
        return None
    _served(store, session, entry, found.call_id)
    return records.read_answer(frame.payload)


def _served(store: SessionStore, session: Session, entry: Entry, call_id: str) -> None:
    log.info("call_rejoined", session_id=session.session_id, call_id=call_id)
    store.rejoined(session)
    for record in session.records:
        if record.call_id == call_id and record.answered:
            for asked, unread in list(session.unread.items()):
                if unread is record:
                    del session.unread[asked]
            store.outcome(session, record, delivered=True)
    entry.confirm(call_id)
