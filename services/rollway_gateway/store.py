"""Every session of this process. The one place where session state changes; synchronous, no I/O.

open ──seal──► sealing ──last call ends──► sealed ──forget──► gone

With a journal each change is appended to it here, and a session need not be in memory: it is then told again from its
records (`shelf.py`) before anything is done with it.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import structlog

from rollway_gateway.capture.prompt_ids import KnownPrompts
from rollway_gateway.dialects.responses.kept import KeptResponses
from rollway_gateway.exact.budget import Budget
from rollway_gateway.journal.entries import Entry
from rollway_gateway.journal.journal import Journal
from rollway_gateway.journal.replay import Limits
from rollway_gateway.journal.session_log import SessionLog
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.record import CallRecord
from rollway_gateway.session import Session, SessionCall
from rollway_gateway.tree import cut, uncut
from rollway_wire.gateway import SessionSpec
from rollway_wire.problems import BadRequest, Conflict, ContractViolation, NotFound
from rollway_wire.tokens import Trajectory

log = structlog.get_logger()

ID_MAX = 512
TOMBSTONES = 10_000
SPILL_LOOKS = 32
"""So many sessions are looked at when one call's end goes over the memory budget."""
_OURS = ("messages", "prompt", "model", "stream", "stream_options")


def check_id(session_id: str) -> str:
    """Return ``session_id`` if a URL path can carry it and be read back.

    Raises:
        BadRequest: empty, over 512 characters, unprintable, with an empty, "." or ".." segment, or with a segment
            "v1", which would end the id in an agent's URL.
    """
    segments = session_id.split("/")
    if not 1 <= len(session_id) <= ID_MAX or not session_id.isprintable():
        raise BadRequest(f"session id must have 1 to {ID_MAX} printable characters")
    if any(s in ("", ".", "..", "v1") for s in segments):
        raise BadRequest("session id may not hold an empty, '.', '..' or 'v1' segment between slashes")
    return session_id


def check_sampling(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``params`` if a session may override an agent's request with them.

    Raises:
        BadRequest: a field that is not sampling.
    """
    for name in _OURS:
        if name in params:
            raise BadRequest(f"sampling_params may not hold {name!r}: it is the agent's, or the pool's, to choose")
    return dict(params)


class SessionStore:
    def __init__(
        self, *, limits: Limits, log: SessionLog | None = None, stored: Mapping[str, Entry] | None = None,
        stored_calls: Mapping[str, str] | None = None, gone: Iterable[str] = (), memory_bytes: int = 0,
    ) -> None:  # fmt: skip
        """
        Args:
            log: where every change is written down; None: memory is all there is.
            stored: sessions of an earlier process, by id.
            stored_calls: session ids by call, of those of them that keep messages.
            gone: ids of sessions forgotten for good.
            memory_bytes: of the sessions in memory, about; beyond it the coldest stay in the journal only. 0: no limit.
        """
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """In memory, the coldest first."""
        self._entries: dict[str, Entry] = dict(stored or {})
        """In the journal, in memory or not."""
        self._calls: dict[str, str] = dict(stored_calls or {})
        """Session ids by call, of sessions that keep messages: rllm's traces are looked up so."""
        self._gone: OrderedDict[str, None] = OrderedDict.fromkeys(gone)
        self.prompts = KnownPrompts()
        """Of the turns in memory."""
        self._limits, self._log, self._memory = limits, log, 0 if log is None else memory_bytes
        self._size = 0

    # -- life

    def open(self, spec: SessionSpec, *, keeps_messages: bool) -> tuple[Session, bool]:
        """The session of ``spec`` and whether it is new. One that is stored is to be fetched before.

        Raises:
            BadRequest: the id or the sampling parameters cannot be used.
            Conflict: the id is taken with other settings.
        """
        session_id = check_id(spec.session_id) if spec.session_id is not None else str(uuid.uuid4())
        params = check_sampling(spec.sampling_params)
        budget = Budget(spec.max_prompt_tokens, spec.max_response_tokens)
        found = self._sessions.get(session_id)
        if found is not None:
            same = (found.pool, found.sampling_params, found.metadata, found.budget)
            if same != (spec.pool, params, spec.metadata, budget):
                raise Conflict(f"session {session_id!r} exists with other settings")
            return found, False
        session = Session(
            session_id=session_id, pool=spec.pool, sampling_params=params, metadata=dict(spec.metadata),
            created_at=time.time(), keeps_messages=keeps_messages,
            responses=KeptResponses(self._limits.responses), budget=budget,
        )  # fmt: skip
        if self._log is not None:
            self._log.opened(session)
            assert session.entry is not None
            self._entries[session_id] = session.entry
        self.take(session)
        self._gone.pop(session_id, None)
        return session, True

    def take(self, session: Session) -> None:
        """Hold a session in memory, as it was made or told again."""
        if self._log is not None:
            log = self._log
            session.fidelity.write_down()
            session.responses.on_keep = lambda response_id, kept: log.response(session, response_id, kept)
        self.spill()  # before: the caller is about to do something with this one
        self._sessions[session.session_id] = session
        session.on_left = self._left
        self._recount(session)

    def change(self, session: Session, metadata: dict[str, Any] | None, sampling: dict[str, Any] | None) -> None:
        """Replace what is given, as rllm's API does with a session that exists."""
        if sampling:
            session.sampling_params = check_sampling(sampling)
        if metadata:
            session.metadata = dict(metadata)
        if self._log is not None:
            self._log.changed(session)

    def find(self, session_id: str) -> Session | None:
        """In memory."""
        return self._sessions.get(session_id)

    def get(self, session_id: str) -> Session:
        """In memory.

        Raises:
            NotFound: it is not.
        """
        found = self._sessions.get(session_id)
        if found is None:
            raise NotFound(f"no session {session_id!r}")
        return found

    def entry(self, session_id: str) -> Entry | None:
        """Of a session in the journal."""
        return self._entries.get(session_id)

    def is_gone(self, session_id: str) -> bool:
        """Forgotten by the own API: a late call must not open it anew."""
        return session_id in self._gone

    @property
    def gone(self) -> list[str]:
        return list(self._gone)

    def forget(self, session: Session, *, remember: bool = True) -> None:
        """Drop a session; its calls in flight are aborted. ``remember``: later calls under its id are refused."""
        self._put_away(session)
        for record in session.records:
            self._calls.pop(record.call_id, None)
        session.state = "gone"
        session.originals.clear()
        self._abort(session, "the session was deleted")
        self._drop(session.session_id, remember=remember)

    def forget_stored(self, entry: Entry, *, remember: bool = True) -> None:
        """Drop a session that is not in memory."""
        self._calls = {call: sid for call, sid in self._calls.items() if sid != entry.session_id}
        self._drop(entry.session_id, remember=remember)

    def _drop(self, session_id: str, *, remember: bool) -> None:
        entry = self._entries.pop(session_id, None)
        if self._log is not None and entry is not None:
            self._log.forgotten(entry, remember=remember)
        if remember:
            self._gone[session_id] = None
            if len(self._gone) > TOMBSTONES:
                self._gone.popitem(last=False)

    def begin_seal(self, session: Session) -> None:
        """Refuse further calls and abort those in flight."""
        if session.state == "open":
            session.state = "sealing"
            session.responses.clear()
            session.originals.clear()
            self._abort(session, "the session was sealed")

    def seal(self, session: Session) -> Trajectory:
        """The final trajectory, once no call is in flight. Idempotent."""
        if session.trajectory is None:
            assert not session.calls
            session.trajectory = trajectory_of(session)
            if session.state == "sealing":
                session.state = "sealed"
                if self._log is not None:
                    self._log.sealed(session)
            session.fidelity.seal()
        return session.trajectory

    @staticmethod
    def _abort(session: Session, reason: str) -> None:
        for call in list(session.calls):
            call.abort(reason, AgentError(410, reason))

    # -- memory

    @property
    def weight(self) -> int:
        """Bytes of the sessions in memory, about; 0 where nothing bounds them."""
        return self._size

    def put_away(self, session: Session) -> bool:
        """Leave a session to the journal, if nothing of it is in memory alone."""
        entry = session.entry
        if self._log is None or entry is None or not session.is_idle or not self._log.journal.has_written(entry):
            return False
        self._put_away(session)
        return True

    def _put_away(self, session: Session) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self._size -= session.counted
            session.counted, session.on_left = 0, None

    def _left(self, session: Session) -> None:
        self._recount(session)
        self.spill()

    def _recount(self, session: Session) -> None:
        """What a session weighs changes with its calls, and with what is kept for retries and continuations."""
        if self._memory and self._sessions.get(session.session_id) is session:
            size = session.size
            self._size += size - session.counted
            session.counted = size

    def spill(self, looks: int = SPILL_LOOKS) -> None:
        """Down to the budget, the coldest first. What is busy is passed over, and is warm from then on.

        Args:
            looks: most sessions to look at.
        """
        if not self._memory or self._size <= self._memory:
            return
        for session in list(islice(self._sessions.values(), looks)):
            if self._size <= self._memory:
                return
            if not self.put_away(session):
                self._sessions.move_to_end(session.session_id)

    # -- calls

    def begin(self, session: Session, call: SessionCall) -> int:
        """Admit a call; returns its place in the session.

        Raises:
            AgentError: 410, the session is sealed; 503, what it leaves could not be kept now.
        """
        if session.state != "open":
            raise AgentError(410, f"session {session.session_id!r} is sealed: no further calls")
        if self._log is not None and (problem := self._log.journal.problem) is not None:
            raise AgentError(503, f"{problem}: try again", retry_after_s=2)
        session.calls.add(call)
        index = session.calls_begun
        session.calls_begun += 1
        self._recount(session)
        if session.session_id in self._sessions:
            self._sessions.move_to_end(session.session_id)
        if self._log is not None:
            self._log.begun(session, call, index)
        return index

    def end(self, session: Session, call: SessionCall, record: CallRecord | None) -> None:
        """A call left; ``record`` is what it left behind, None when nothing was sampled."""
        session.calls.discard(call)
        here = self._sessions.get(session.session_id) is session
        if record is None:
            session.failed_calls += 1
        else:
            session.keep(record)
        if here and self._log is not None:
            self._log.ended(session, call, record)
        session.trim(self._limits.messages)
        if here and record is not None and session.keeps_messages:
            self._calls[record.call_id] = session.session_id
        self._recount(session)
        if not session.calls:
            waiting, session.when_idle = session.when_idle, []
            for tell in waiting:
                tell()
        self.spill()

    def outcome(self, session: Session, record: CallRecord, *, delivered: bool) -> None:
        """Whether a client took a call's answer to its end. What is sealed is final."""
        if session.state != "sealed":
            record.delivered = delivered
            self._tell_outcome(session, record)

    def sampled_again(self, session: Session, record: CallRecord) -> None:
        """Its answer, which nobody took and which is no longer kept, was asked for again."""
        if session.state != "sealed":
            record.sampled_again = True
            self._tell_outcome(session, record)

    def unkept(self, session: Session, record: CallRecord, reason: str) -> None:
        """A call could not be written down, and its agent was told so instead of the end of its answer."""
        record.spoil(reason)
        session.trajectory = None  # a seal in between was not answered, for the same want of a journal
        session.spoiled = session.spoiled or f"call {record.call_id}: {reason}"
        self._tell_outcome(session, record, unkept=reason)
        if self._log is not None:
            self._log.spoiled(session)

    def rejoined(self, session: Session) -> None:
        """A retry gets the answer of the call it repeats."""
        session.rejoined_calls += 1
        if self._log is not None:
            self._log.rejoined(session)

    def _tell_outcome(self, session: Session, record: CallRecord, *, unkept: str | None = None) -> None:
        if self._log is not None and self._sessions.get(session.session_id) is session:
            self._log.outcome(session, record, unkept=unkept)

    # -- answers in the journal

    @property
    def journal(self) -> Journal | None:
        return None if self._log is None else self._log.journal

    # -- views

    def __iter__(self) -> Iterator[Session]:
        """Those in memory."""
        return iter(list(self._sessions.values()))

    def stored(self) -> list[Entry]:
        """Those that are not in memory."""
        return [entry for entry in self._entries.values() if entry.session_id not in self._sessions]

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def count_open(self, pool: str) -> int:
        here = sum(s.pool == pool and s.state == "open" for s in self._sessions.values())
        return here + sum(e.pool == pool and e.state == "open" for e in self.stored())

    def session_of_call(self, call_id: str) -> str | None:
        """Of a call of a session that keeps messages."""
        return self._calls.get(call_id)


def trajectory_of(session: Session) -> Trajectory:
    """What the session's finished calls make; incomplete while any is in flight. Evidence that contradicts itself is
    handed out uncut, with the contradiction as the reason."""
    flying = f"{len(session.calls)} calls are in flight" if session.calls else None
    unread = [record for record in session.records if record.answered and not record.delivered]
    turns, lost = session.turns(), session.lost_tokens()
    metadata = {
        **session.metadata,
        "sampling_params": dict(session.sampling_params),
        "pool": session.pool,
        "calls": session.calls_begun,
        "failed_calls": session.failed_calls,
        "lost_calls": len(session.lost_calls),
        "rejoined_calls": session.rejoined_calls,
        **session.fidelity.metadata(),
    }
    try:
        return cut(
            session.session_id, turns, mode=session.fidelity.mode, lost_tokens=lost,
            duplicate=_whole_turns(r for r in unread if r.sampled_again),
            orphaned=_whole_turns(r for r in unread if not r.sampled_again),
            metadata=metadata, incomplete=session.doubt() or flying,
        )  # fmt: skip
    except ContractViolation as e:
        reason = e.detail
    log.error("evidence_contradicts_itself", session_id=session.session_id, detail=reason)
    return uncut(session.session_id, turns, reason, lost_tokens=lost, metadata=metadata)


def _whole_turns(records: Iterable[CallRecord]) -> list[str]:
    return [turn.turn_id for record in records for turn in record.kept if turn.incomplete is None]
