"""One model call, from the agent's request to its turns.

    admitted ──► attempt on a worker ──► answered            recorded before the agent gets the last bytes
        │             │  ├─ connection failed, nothing delivered ──► attempt on another worker
        │             │  └─ cut by the engine ──► the gate open again, it goes on from its tokens
        │             └─ aborted (seal, fence, client gone for good, shutdown) ──► recorded incomplete
        ├─ refused (sealed, fenced, no worker)
        └─ a retry of a call whose answer did not arrive ──► that call's answer

A call is in its pool's and its session's set of calls in flight from `run` until `_settle`; `abort` does nothing after.
A client that leaves does not end it at once: for `retry_grace_s` it goes on, and its answer waits, for a retry.

Past 300 lines because admission, attempts, retries and the record share one state, and their order is the point.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import aiohttp
import orjson
import structlog
from starlette.types import Message, Receive, Send

from rollway_gateway.capture.answer import UNKNOWN_FORM, strip_answer, take_answer
from rollway_gateway.capture.answers import Answers
from rollway_gateway.capture.ask import Ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.message import StreamedMessage
from rollway_gateway.capture.sse import EventTooLarge, SseBlocks
from rollway_gateway.capture.stream import StreamFilter
from rollway_gateway.delivery import Delivery, client_left
from rollway_gateway.exact.lane import Lane, Way
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.pool import Pool
from rollway_gateway.record import CallRecord, make_record
from rollway_gateway.replies import headers_back, send_error, send_whole
from rollway_gateway.session import Session
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.store import SessionStore
from rollway_gateway.upstream import WorkerLost, WorkerSilent, post
from rollway_gateway.worker import Worker

log = structlog.get_logger()

CUTS = 16
"""How often one answer may be cut and go on."""
UNCAPTURED = "a completion that echoes a prompt of token ids cannot be captured without changing it"


class ModelCall:
    """See the module. Made for one request, run once, in the task that serves it."""

    def __init__(
        self, *, session: Session, pool: Pool, store: SessionStore, client: aiohttp.ClientSession, ask: Ask,
        raw: bytes, headers: dict[str, str], settings: GatewaySettings, started_at: float, says_retry: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            says_retry: the client says that it asks again.
        """
        self.call_id = uuid.uuid4().hex
        self._session, self._pool, self._store, self._client, self._ask = session, pool, store, client, ask
        self.asked = (ask.kind, raw)
        self._says_retry = says_retry
        own_id = ask.body.get("request_id")
        self._request_id = headers.get("x-request-id") or (own_id if isinstance(own_id, str) else self.call_id)
        self._headers = headers if own_id is not None else {"x-request-id": self.call_id, **headers}
        self._settings = settings
        self._started_at = started_at
        self._first_at: float | None = None
        self._evidence = Evidence(ask.n, echo=ask.echo)
        self._lane = Lane(ask, session.fidelity, len(raw), budget=session.budget, count=self._prompt_length)
        self._answers: Answers | None = None
        self._events: StreamFilter | None = None
        self._message: StreamedMessage | None = None
        self._cut: dict[str, Any] | None = None
        """A whole answer that the engine aborted."""
        self._before: Evidence | None = None
        """Of it, until it is told again as a whole."""
        self._index = -1
        self._version = pool.version
        self._worker: Worker | None = None
        self._model = ""
        self._began = False
        """The agent has the answer's head."""
        self._settled = False
        self._cause: tuple[str, AgentError | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._delivery: Delivery | None = None
        self._record: CallRecord | None = None
        self._ended_at: float | None = None

    # -- life

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve the call, or the one it is a retry of.

        Raises:
            AgentError: the answer is this error; nothing was sent yet.
            CancelledError: the server is shutting down.
        """
        original = self._session.originals.find(self.asked, said=self._says_retry)
        if original is not None:
            await original.rejoin(receive, send)
            return
        if self._session.unread and (unread := self._session.unread.pop(self._digest(), None)) is not None:
            unread.sampled_again = True
        self._task = asyncio.current_task()
        self._pool.enter(self)
        try:
            self._index = self._store.begin(self._session, self)
        except AgentError:
            self._pool.leave(self)
            raise
        self._delivery = Delivery(send, grace_s=self._settings.retry_grace_s, on_silence=self._unheard)
        self._session.originals.add(self)
        watch = asyncio.create_task(self._watch(receive))
        try:
            await self._attempts()
        except asyncio.CancelledError:
            await self._cancelled()
        except AgentError as e:
            self._settle(e.message, sampled=bool(self._evidence.choices))
            await self._refuse(e)
        finally:
            self._settle("the gateway failed", sampled=True)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._end()

    def abort(self, reason: str, error: AgentError | None) -> None:
        """Stop the call; its turns are recorded incomplete with ``reason``, and the agent, if there, gets ``error``."""
        if not self._settled and self._cause is None and self._task is not None:
            self._cause = (reason, error)
            self._task.cancel()

    async def _watch(self, receive: Receive) -> None:
        await client_left(receive)
        # With every choice finished only the usage is still to come: the agent has the turn, let it end.
        if not self._evidence.finished() and self._delivery is not None:
            self._delivery.lose_client()

    async def _cancelled(self) -> None:
        if self._cause is None:
            self._settle("the gateway shut down", sampled=True)
            raise asyncio.CancelledError
        assert self._task is not None
        self._task.uncancel()
        reason, error = self._cause
        self._settle(reason, sampled=True)
        if error is not None:
            await self._refuse(error)

    async def _refuse(self, error: AgentError) -> None:
        if self._began:
            await self._send({"type": "http.response.body", "body": error.event()})
            return
        await send_error(self._send, error)

    async def _send(self, message: Message) -> None:
        assert self._delivery is not None
        await self._delivery.send(message)

    @property
    def upstream(self) -> tuple[Worker, str] | None:
        return None if self._worker is None else (self._worker, self._request_id)

    # -- retries

    @property
    def delivered(self) -> bool:
        return self._record is not None and self._record.answered and self._record.delivered

    def answers_retry(self, *, said: bool) -> bool:
        if self._delivery is None or self._settings.retry_grace_s == 0:
            return False
        if self._ended_at is None or not self.delivered:
            return said or not self._delivery.heard
        return said and time.monotonic() - self._ended_at < self._settings.retry_grace_s

    async def rejoin(self, receive: Receive, send: Send) -> None:
        """Serve a retry: everything this call sends, from its start.

        Raises:
            AgentError: 503, the call ended without an answer.
        """
        assert self._delivery is not None
        log.info("call_rejoined", session_id=self._session.session_id, call_id=self.call_id)
        self._session.rejoined_calls += 1
        took = await self._delivery.rejoin(receive, send)
        if took and self._record is not None:
            self._record.delivered = True
        if took is False:
            raise AgentError(503, "the call ended without an answer: try again", retry_after_s=1)

    def _unheard(self) -> None:
        """Nobody listens, and no retry came."""
        if self._ended_at is None:
            self.abort("client disconnected", None)
            return
        self._session.originals.drop(self)
        if self._record is not None and self._record.answered and not self._record.delivered:
            self._session.unread[self._digest()] = self._record

    def _digest(self) -> bytes:
        return hashlib.blake2b(self.asked[1], digest_size=16, person=self.asked[0].encode()).digest()

    def forget(self) -> None:
        if self._delivery is not None:
            self._delivery.forget()

    def _end(self) -> None:
        """Nothing more is sent. A whole answer waits for a retry."""
        assert self._delivery is not None
        heard = self._delivery.heard
        self._ended_at = time.monotonic()
        self._delivery.end()
        if self._record is None or not self._record.answered or self._session.state != "open":
            self._session.originals.drop(self)
        else:
            self._record.delivered = heard
            self._delivery.await_silence()

    # -- attempts

    async def _attempts(self) -> None:
        """A lost connection is tried again while nothing was delivered: elsewhere, or where there is no other worker
        on the same one, whose idle connection may just have been closed by its keep-alive limit."""
        tried: list[Worker] = []
        lost: WorkerLost | None = None
        for _ in range(self._settings.max_attempts):
            await self._gate()
            worker = self._next_worker(tried, lost)
            try:
                with self._on(worker):
                    return await self._attempt(worker)
            except WorkerLost as e:
                lost = e
                tried.append(worker)
                limit = self._settings.health_failures
                worker.check_failed(str(e), now=time.monotonic(), limit=limit, alive_window_s=0)
                log.warning("worker_lost", worker=worker.worker_id, session_id=self._session.session_id, detail=str(e))
                if self._began:
                    break
            except WorkerSilent as e:
                raise AgentError(504, f"worker {worker.worker_id} fell silent: {e}") from e
        raise AgentError(502, f"worker {tried[-1].worker_id} failed: {lost}") from lost

    def _next_worker(self, tried: list[Worker], lost: WorkerLost | None) -> Worker:
        try:
            return self._pool.choose(self._session.worker_id, tried)
        except AgentError:
            if lost is None:
                raise
            if lost.refused:
                raise AgentError(502, f"worker {tried[-1].worker_id} failed, no other is healthy: {lost}") from lost
            return tried[-1]

    @contextmanager
    def _on(self, worker: Worker) -> Iterator[None]:
        self._worker = worker
        self._session.worker_id = worker.worker_id
        if not self._lane.goes_on:
            self._version = self._pool.version
        self._evidence = Evidence(self._ask.n, echo=self._ask.echo)
        self._events = self._cut = None
        if not self._ask.captured:
            self._evidence.fail(UNCAPTURED)
        worker.active += 1
        try:
            yield
        finally:
            worker.active -= 1

    async def _attempt(self, worker: Worker) -> None:
        self._model = worker.model_for(self._ask.model) or ""
        cuts = 0
        while (outcome := await self._go(worker, await self._lane.way(worker, self._model))) != "answered":
            if outcome == "refused" and self._lane.goes_on:
                raise self._given_up()
            if outcome == "cut":
                cuts += 1
                if cuts > CUTS or self._pool.gate == "fenced" or not self._resumes():
                    raise self._given_up()
                log.info("call_cut", session_id=self._session.session_id, call_id=self.call_id)
                await self._gate()

    async def _prompt_length(self, worker: Worker) -> int | None:
        """As the worker's /tokenize counts; None where it does not."""
        names = ("messages", "tools", "chat_template_kwargs") if self._ask.kind == "chat" else ("prompt",)
        body = {name: self._ask.body[name] for name in names if name in self._ask.body}
        async with post(
            self._client, worker.url + "/tokenize", orjson.dumps({**body, "model": self._model}), {}
        ) as answer:
            said = await answer.read()
        try:
            return int(orjson.loads(said)["count"]) if answer.status == 200 else None
        except UNKNOWN_FORM:
            return None

    async def _gate(self) -> None:
        """Wait while the pool is paused.

        Raises:
            AgentError: 503, it was fenced, or stays paused for too long.
        """
        while self._pool.gate == "paused":
            opened = asyncio.Event()
            self._pool.hold(self, opened.set)
            try:
                async with asyncio.timeout(self._settings.hold_s):
                    await opened.wait()
            except TimeoutError:
                raise AgentError(503, f"pool {self._pool.name!r} stays paused: try again", retry_after_s=1) from None
            finally:
                self._pool.release(self)
            self._pool.enter(self)

    def _resumes(self) -> bool:
        """Whether the answer that the engine cut can go on; if so, what is there of it is kept."""
        cut = self._cut
        head: dict[str, Any]
        logprobs: list[dict[str, Any]] = []
        if cut is not None:
            logprobs = (cut["choices"][0].get("logprobs") or {}).get("content") or []
            head = {str(name): cut[name] for name in ("id", "created") if name in cut}
        elif self._events is not None:
            head = self._events.head
        else:
            return False
        if not self._lane.resume(self._evidence, head, logprobs):
            return False
        if cut is None:
            self._evidence.reopen()
        else:  # told again as a whole
            self._before = self._evidence
            self._cut, self._evidence = None, Evidence(self._ask.n)
        return True

    async def _go(self, worker: Worker, way: Way) -> Literal["answered", "refused", "cut"]:
        """Go one way. refused: the engine would not take prompt ids, so the call goes as a chat."""
        if self._events is None:
            self._answers = Answers() if self._lane.remembers else None
        async with post(self._client, worker.api_url + way.path, way.body, self._headers) as response:
            worker.bytes_at = time.monotonic()
            if way.as_chat is not None and 400 <= response.status < 500:
                self._lane.refused(response.status, await response.read())
                return "refused"
            if response.status != 200:
                await self._pass_on(response)
            elif response.content_type == "text/event-stream":
                return await self._stream(worker, way, response)
            else:
                return await self._whole(way, response)
        return "answered"

    async def _pass_on(self, response: aiohttp.ClientResponse) -> None:
        """The engine refused: its answer goes to the agent unchanged, and nothing was sampled."""
        body = await response.read()
        self._settle("refused by the engine", sampled=False)
        await send_whole(self._send, response.status, headers_back(response), body)

    async def _whole(self, way: Way, response: aiohttp.ClientResponse) -> Literal["answered", "cut"]:
        body = await response.read()
        self._first_at = time.time()
        try:
            payload = orjson.loads(body)
            if not isinstance(payload, dict):
                raise TypeError("not an object")
            if way.as_chat is not None:
                payload = way.as_chat.whole(payload)
            if self._answers is not None:
                self._answers.take_whole(payload)
        except UNKNOWN_FORM as e:  # orjson.JSONDecodeError is a ValueError
            self._settle(f"the engine's answer is not readable: {type(e).__name__}: {e}", sampled=True)
            raise AgentError(502, "the worker's answer is not readable") from e
        take_answer(payload, self._ask, self._evidence)
        if self._evidence.aborted:
            self._cut = payload
            return "cut"
        strip_answer(payload, self._ask)
        shown = orjson.dumps(payload)
        self._settle(None, sampled=True, answer=shown if self._session.keeps_messages else None)
        await send_whole(self._send, 200, headers_back(response), shown)
        return "answered"

    async def _stream(self, worker: Worker, way: Way, response: aiohttp.ClientResponse) -> Literal["answered", "cut"]:
        """Events go on as they come. The end waits for the record: what the agent has in full is never lost."""
        events = self._events
        if events is None:
            self._message = StreamedMessage() if self._session.keeps_messages else None
            events = self._events = StreamFilter(
                self._ask, self._evidence, worker.fingerprint, translator=way.as_chat, answers=self._answers
            )
        elif way.as_chat is not None and (rest := events.go_on(way.as_chat)):
            await self._show(response, events, rest)
        blocks = SseBlocks()
        async for data in response.content.iter_any():
            worker.bytes_at = time.monotonic()
            try:
                shown = events.blocks(blocks.feed(data))
            except EventTooLarge as e:
                raise AgentError(502, f"the worker's stream is not readable: {e}") from e
            if self._first_at is None and self._evidence.choices:
                self._first_at = time.time()
            await self._show(response, events, shown)
            if self._evidence.aborted:
                return "cut"
            if events.done:
                await _read_out(response)
                return "answered"
        raise WorkerLost("the stream ended without [DONE]")

    async def _show(self, response: aiohttp.ClientResponse, events: StreamFilter, shown: bytes) -> None:
        """Send events on, the last ones after the record."""
        if self._message is not None:
            self._message.feed(shown)
        if events.done and not self._settled:
            self._evidence.settle()
            # An error before any token is a refusal that came after the stream's head.
            sampled = not self._evidence.errored or self._evidence.captured_tokens > 0
            self._settle(None, sampled=sampled, answer=None if self._message is None else self._message.dump())
        if not shown:
            return
        if not self._began:
            self._began = True
            await self._send({"type": "http.response.start", "status": 200, "headers": headers_back(response)})
        await self._send({"type": "http.response.body", "body": shown, "more_body": not events.done})

    def _given_up(self) -> AgentError:
        """An aborted generation is nobody's answer: the agent may ask again."""
        reason = "the engine aborted the generation"
        self._settle(reason, sampled=True)
        return AgentError(503, f"{reason}: try again", retry_after_s=1)

    # -- the record

    def _settle(self, problem: str | None, *, sampled: bool, answer: bytes | None = None) -> None:
        """Leave pool and session, with a record if tokens may have been sampled. Only the first time counts."""
        if self._settled:
            return
        self._settled = True
        if problem is not None:
            if self._before is not None and not self._evidence.choices:
                self._evidence, sampled = self._before, True
            self._evidence.fail(problem)
        record = None
        if sampled and self._worker is not None:
            record = make_record(
                self._evidence, call_id=self.call_id, index=self._index, model=self._model,
                worker=self._worker.worker_id, versions=(self._version, self._pool.version),
                times=(self._started_at, self._first_at, time.time()), answer=answer,
                request=self.asked[1] if self._session.keeps_messages else None,
                answered=problem is None and not self._evidence.errored,
            )  # fmt: skip
        self._record = record
        if record is not None:
            record.delivered = self._delivery is not None and self._delivery.heard
            self._lane.keep(record, {} if self._answers is None else self._answers.messages())
        self._store.end(self._session, self, record)
        self._pool.leave(self)
        flaws = sorted({t.incomplete for t in record.turns if t.incomplete}) if record else []
        if flaws:
            log.warning("turn_incomplete", session_id=self._session.session_id, call_id=self.call_id, flaws=flaws)


async def _read_out(response: aiohttp.ClientResponse) -> None:
    """Read to the end of the message, which follows [DONE] at once: only then can the connection serve another call."""
    try:
        async with asyncio.timeout(1):
            await response.content.read()
    except (TimeoutError, aiohttp.ClientError):
        response.close()
