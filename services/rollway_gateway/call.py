"""One model call, from the agent's request to its turns.

    admitted ──► attempts on workers ──► answered            recorded before the agent gets the last bytes
        │             ├─ aborted (seal, fence, client gone for good, shutdown) ──► recorded incomplete
        │             └─ failed on every worker tried ──► recorded incomplete if anything was sampled
        ├─ refused (sealed, fenced, no worker)
        └─ a retry of a call whose answer did not arrive ──► that call's answer

A call is in its pool's and its session's set of calls in flight from `run` until `settle`; `abort` does nothing after.
Its parts own the rest: `attempts` which worker is asked and when again, `engine_answer` what came back,
`kept_answer` who hears it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import structlog
from starlette.types import Message, Receive, Send

from rollway_gateway.attempts import Attempts
from rollway_gateway.capture.ask import Ask
from rollway_gateway.connections import Connections
from rollway_gateway.delivery import client_left
from rollway_gateway.engine_answer import EngineAnswer
from rollway_gateway.exact.asking import Asking
from rollway_gateway.exact.lane import Lane
from rollway_gateway.journal.answers import keep_messages, kept_answer
from rollway_gateway.journal.journal import Journal
from rollway_gateway.journal.problems import JournalDown
from rollway_gateway.kept_answer import KeptAnswer, digest
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.pace import Pace
from rollway_gateway.pool import Pool
from rollway_gateway.record import CallRecord, make_record
from rollway_gateway.replies import send_error
from rollway_gateway.session import Session
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.store import SessionStore
from rollway_gateway.worker import Worker

log = structlog.get_logger()


class ModelCall:
    """See the module. Made for one request, run once, in the task that serves it."""

    def __init__(
        self, *, session: Session, pool: Pool, store: SessionStore, client: Connections, ask: Ask,
        raw: bytes, headers: dict[str, str], settings: GatewaySettings, started_at: float, pace: Pace,
        says_retry: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            says_retry: the client says that it asks again.
        """
        self.call_id = secrets.token_hex(16)
        self._session, self._pool, self._store, self._pace = session, pool, store, pace
        self._asked = (ask.kind, raw)
        self._says_retry = says_retry
        self._grace_s = settings.retry_grace_s
        self._started_at = started_at
        self._answer = EngineAnswer(ask, self, keeps_message=session.keeps_messages)
        self._lane = Lane(
            ask,
            session.fidelity,
            budget=session.budget,
            routing=session.routing,
            count=self._prompt_length,
            asking=Asking(client),
            prompts=store.prompts,
        )
        self._attempts = Attempts(
            self, ask=ask, session=session, pool=pool, client=client, lane=self._lane, answer=self._answer,
            headers=headers, settings=settings,
        )  # fmt: skip
        self._index = -1
        self._settled = False
        self._cause: tuple[str, AgentError | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._kept: KeptAnswer | None = None
        self._record: CallRecord | None = None
        self._digest: bytes | None = None
        self._held: list[Message] = []
        """The end of the answer, until the record is written."""
        self._is_kept = False
        """The record is written down, and the answer with it."""

    # -- life

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve the call, or the one it is a retry of.

        Raises:
            AgentError: the answer is this error; nothing was sent yet.
            CancelledError: the server is shutting down.
        """
        original = self._session.originals.find(self._asked, said=self._says_retry)
        if original is not None:
            await original.rejoin(receive, send)
            return
        if await self._answered_before(send):
            return
        if self._session.unread and (unread := self._session.unread.pop(self.digest(), None)) is not None:
            self._store.sampled_again(self._session, unread)
        self._task = asyncio.current_task()
        self._pool.enter(self)
        try:
            self._index = self._store.begin(self._session, self)
        except AgentError:
            self._pool.leave(self)
            raise
        self._kept = KeptAnswer(
            self._asked, self.call_id, self._session, send, store=self._store, grace_s=self._grace_s,
            abort=self._unheard,
        )  # fmt: skip
        watch = asyncio.create_task(self._watch(receive, self._kept))
        try:
            await self._attempts.run()
        except asyncio.CancelledError:
            await self._cancelled()
        except AgentError as e:
            self.settle(e.message, sampled=bool(self._answer.evidence.choices))
            await self._refuse(e)
        finally:
            self.settle("the gateway failed", sampled=True)
            watch.cancel()
            self._kept.end(self._record, journaled=self._is_kept)
            self._let_go()

    def _let_go(self) -> None:
        """Of its parts, which know it: else the call, with request and answer, would be left to garbage collection,
        which looks at what is old rarely."""
        self._task = None
        del self._answer, self._lane, self._attempts

    def abort(self, reason: str, error: AgentError | None) -> None:
        """Stop the call; its turns are recorded incomplete with ``reason``, and the agent, if there, gets ``error``."""
        if not self._settled and self._cause is None and self._task is not None:
            self._cause = (reason, error)
            self._task.cancel()

    def _unheard(self) -> None:
        self.abort("client disconnected", None)

    async def _watch(self, receive: Receive, kept: KeptAnswer) -> None:
        await client_left(receive)
        # With every choice finished only the usage is still to come: the agent has the turn, let it end.
        if not self._answer.evidence.finished():
            kept.lose_client()

    async def _cancelled(self) -> None:
        if self._cause is None:
            self.settle("the gateway shut down", sampled=True)
            raise asyncio.CancelledError
        assert self._task is not None
        self._task.uncancel()
        reason, error = self._cause
        self.settle(reason, sampled=True)
        if error is not None:
            await self._refuse(error)

    async def _answered_before(self, send: Send) -> bool:
        """Serve a retry whose answer is in the journal."""
        if self._store.journal is None or self._session.entry is None or not self._session.entry.answers:
            return False
        found = await kept_answer(self._store, self._session, self.digest(), self._says_retry, self._grace_s)
        if found is None:
            return False
        for message in found.messages():
            await send(message)
        return True

    async def _refuse(self, error: AgentError) -> None:
        if self._answer.began:
            await self.send({"type": "http.response.body", "body": error.event()})
            return
        await send_error(self.send, error)

    def send(self, message: Message) -> Awaitable[None]:
        """To the agent; what comes after the record waits until that is written.

        Raises:
            AgentError: 503, it cannot be written now.
        """
        assert self._kept is not None
        if self._record is None or not self._record.answered or self._is_kept or self._store.journal is None:
            return self._kept.send(message)  # every event comes this way: no coroutine of its own
        return self._send_after_record(message)

    @property
    def piece(self) -> Callable[[bytes], Awaitable[None] | None]:
        """What sends a piece of a stream's body to the agent, in its middle: before the record. None: it is out."""
        assert self._kept is not None
        return self._kept.piece

    async def _send_after_record(self, message: Message) -> None:
        self._held.append(message)
        if message["type"] == "http.response.start" or message.get("more_body", False):
            return
        assert self._record is not None and self._kept is not None and self._store.journal is not None
        await self._write_down(self._record, self._kept, self._store.journal)
        held, self._held = self._held, []
        for waiting in held:
            await self._kept.send(waiting)

    async def _write_down(self, record: CallRecord, kept: KeptAnswer, journal: Journal) -> None:
        if self._grace_s:
            keep_messages(self._store, self._session, record.call_id, self.digest(), [*kept.sent, *self._held])
        try:
            await journal.committed()
        except JournalDown as e:
            self._held.clear()
            self._store.unkept(self._session, record, e.detail)
            raise AgentError(503, f"{e.detail}: try again", retry_after_s=2) from e
        self._is_kept = True

    async def turn(self, size: int) -> None:
        await self._pace.turn(size)

    def digest(self) -> bytes:
        """Of the request."""
        if self._digest is None:
            self._digest = digest(self._asked)
        return self._digest

    @property
    def upstream(self) -> tuple[Worker, str] | None:
        worker = self._attempts.worker
        return None if worker is None else (worker, self._attempts.request_id)

    async def _prompt_length(self, worker: Worker) -> int | None:
        return await self._attempts.prompt_length(worker)

    # -- the record

    def settle(self, problem: str | None, *, sampled: bool, answer: bytes | None = None) -> None:
        """Leave pool and session, with a record if tokens may have been sampled. Only the first time counts."""
        if self._settled:
            return
        self._settled = True
        if problem is not None and self._answer.fail(problem):
            sampled = True
        try:
            if (sampled or self._answer.discarded) and self._attempts.worker is not None:
                self._record = self._made_record(self._attempts.worker, problem is None, answer)
        except Exception as e:
            self._session.spoiled = f"call {self.call_id} could not be recorded: {type(e).__name__}: {e}"
            raise
        finally:
            self._store.end(self._session, self, self._record)
            self._pool.leave(self)
        if self._record is not None and (flaws := self._record.flaws):
            log.warning("turn_incomplete", session_id=self._session.session_id, call_id=self.call_id, flaws=flaws)

    def _made_record(self, worker: Worker, whole: bool, answer: bytes | None) -> CallRecord:
        found = self._answer
        record = make_record(
            found.evidence, call_id=self.call_id, index=self._index, model=self._attempts.model,
            worker=worker.worker_id, versions=(self._attempts.version, self._pool.version),
            times=(self._started_at, found.first_at, time.time()), answer=answer,
            request=self._asked[1] if self._session.keeps_messages else None,
            answered=whole and not found.evidence.errored,
        )  # fmt: skip
        record.lost_tokens += found.discarded
        record.delivered = self._kept is not None and self._kept.heard
        self._lane.keep(record, {} if found.answers is None else found.answers.messages())
        return record
