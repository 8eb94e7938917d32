"""Every session of this process. The one place where session state changes; synchronous, no I/O.

open ──seal──► sealing ──last call ends──► sealed ──forget──► gone
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import structlog

from rollway_gateway.dialects.responses.kept import KeptResponses
from rollway_gateway.exact.budget import Budget
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
    def __init__(self, *, kept_bytes_per_session: int, response_bytes_per_session: int) -> None:
        self._sessions: dict[str, Session] = {}
        self._calls: dict[str, tuple[Session, CallRecord]] = {}
        """By call id, of sessions that keep messages: rllm's traces are looked up so."""
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._kept_limit = kept_bytes_per_session
        self._responses_limit = response_bytes_per_session

    # -- life

    def open(self, spec: SessionSpec, *, keeps_messages: bool) -> tuple[Session, bool]:
        """The session of ``spec`` and whether it is new.

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
            created_at=time.time(), keeps_messages=keeps_messages, responses=KeptResponses(self._responses_limit),
            budget=budget,
        )  # fmt: skip
        self._sessions[session_id] = session
        self._gone.pop(session_id, None)
        return session, True

    def change(self, session: Session, metadata: dict[str, Any] | None, sampling: dict[str, Any] | None) -> None:
        """Replace what is given, as rllm's API does with a session that exists."""
        if sampling:
            session.sampling_params = check_sampling(sampling)
        if metadata:
            session.metadata = dict(metadata)

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def get(self, session_id: str) -> Session:
        """Raises:
        NotFound: no such session."""
        found = self._sessions.get(session_id)
        if found is None:
            raise NotFound(f"no session {session_id!r}")
        return found

    def is_gone(self, session_id: str) -> bool:
        """Forgotten by the own API: a late call must not open it anew."""
        return session_id in self._gone

    def forget(self, session: Session, *, remember: bool = True) -> None:
        """Drop a session; its calls in flight are aborted. ``remember``: later calls under its id are refused."""
        self._sessions.pop(session.session_id, None)
        for record in session.records:
            self._calls.pop(record.call_id, None)
        session.state = "sealed"
        session.originals.clear()
        self._abort(session, "the session was deleted")
        if remember:
            self._gone[session.session_id] = None
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
            session.state = "sealed"
            session.fidelity.seal()
        return session.trajectory

    @staticmethod
    def _abort(session: Session, reason: str) -> None:
        for call in list(session.calls):
            call.abort(reason, AgentError(410, reason))

    # -- calls

    def begin(self, session: Session, call: SessionCall) -> int:
        """Admit a call; returns its place in the session.

        Raises:
            AgentError: 410, the session is sealed.
        """
        if session.state != "open":
            raise AgentError(410, f"session {session.session_id!r} is sealed: no further calls")
        session.calls.add(call)
        index = session.calls_begun
        session.calls_begun += 1
        return index

    def end(self, session: Session, call: SessionCall, record: CallRecord | None) -> None:
        """A call left; ``record`` is what it left behind, None when nothing was sampled."""
        session.calls.discard(call)
        if not session.calls:
            waiting, session.when_idle = session.when_idle, []
            for tell in waiting:
                tell()
        if record is None:
            session.failed_calls += 1
            return
        session.records.append(record)
        if session.keeps_messages and self._sessions.get(session.session_id) is session:
            self._calls[record.call_id] = (session, record)
        session.kept_bytes += record.kept_bytes
        for old in session.records:
            if session.kept_bytes <= self._kept_limit:
                break
            session.kept_bytes -= old.kept_bytes
            old.request = old.answer = None

    # -- views

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def count_open(self, pool: str) -> int:
        return sum(s.pool == pool and s.state == "open" for s in self._sessions.values())

    def record(self, call_id: str) -> tuple[Session, CallRecord] | None:
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
    return [turn.turn_id for record in records for turn in record.turns if turn.incomplete is None]
