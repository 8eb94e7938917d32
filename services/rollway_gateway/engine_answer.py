"""The answer of one call as it comes from the engine: read once, its evidence taken, and passed on.

    restart ──► take ──► answered                    settled before the agent gets the last bytes
       ▲         ├─────► refused                     the engine would not take prompt ids
       │         ├─────► cut ───────┬──► resume ──► take
       └─────────┴─────► WorkerProblem               of which the agent has seen nothing, unless `delivered`
                              └──► give_failure      what the worker said goes to the agent

It outlives attempts: an answer that goes on after a cut, or elsewhere, is one answer. The opening of a stream, which
comes with its first token, waits for that: until then all of it can be asked for again elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

import orjson
from starlette.types import Message

from rollway_gateway.capture.answer import UNKNOWN_FORM, strip_answer, take_answer
from rollway_gateway.capture.answers import Answers
from rollway_gateway.capture.ask import Ask
from rollway_gateway.capture.evidence import Evidence
from rollway_gateway.capture.logprobs import cut_logprobs
from rollway_gateway.capture.message import StreamedMessage
from rollway_gateway.capture.sse import EventTooLarge, SseBlocks, data_of
from rollway_gateway.capture.stream import StreamFilter
from rollway_gateway.connection import Answer
from rollway_gateway.exact.as_stream import as_stream
from rollway_gateway.exact.asking import Unsaid
from rollway_gateway.exact.lane import Lane, Way
from rollway_gateway.flow import Flow, unreadable
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.replies import STREAMS, headers_back, send_whole
from rollway_gateway.upstream import WorkerFailed, WorkerLost
from rollway_gateway.worker import Worker

Outcome = Literal["answered", "refused", "cut"]
UNCAPTURED = "a completion that echoes a prompt of token ids cannot be captured without changing it"


class Taker(Protocol):
    """What an answer needs of its call."""

    def send(self, message: Message) -> Awaitable[None]:
        """To the agent."""

    @property
    def piece(self) -> Callable[[bytes], Awaitable[None] | None]:
        """What sends a piece of a stream's middle to the agent. None: it is out."""

    async def turn(self, size: int) -> None:
        """Until it may do what takes long with so many bytes."""

    def settle(self, problem: str | None, *, sampled: bool, answer: bytes | None = None) -> None:
        """Record the call; only the first time counts."""


class EngineAnswer:
    """Of one call."""

    def __init__(self, ask: Ask, call: Taker, *, keeps_message: bool) -> None:
        self._ask, self._call, self._keeps_message = ask, call, keeps_message
        self.evidence = Evidence(ask.n, echo=ask.echo)
        self.answers: Answers | None = None
        """The assistant messages, where the lane wants them."""
        self.discarded = 0
        """Tokens of answers that broke off, and that another worker began anew."""
        self.first_at: float | None = None
        """Unix time of the first token."""
        self.began = False
        """The agent has the answer's head."""
        self.delivered = False
        """The agent has something of the answer itself."""
        self._opening = b""
        self._openings = ask.n if ask.kind == "chat" else 0
        """Events of a stream before its first token: one per choice."""
        self._events: StreamFilter | None = None
        self._message: StreamedMessage | None = None
        self._cut: dict[str, Any] | None = None
        """A whole answer that the engine aborted."""
        self._before: Evidence | None = None
        """Of it, until it is told again as a whole."""

    def restart(self) -> None:
        """Another worker answers from the start."""
        self.discarded += self.sampled
        self._opening = b""
        self.evidence = Evidence(self._ask.n, echo=self._ask.echo)
        self._events = self._cut = None
        if not self._ask.captured:
            self.evidence.fail(UNCAPTURED)

    @property
    def sampled(self) -> int:
        """Tokens of this answer so far, as captured or as the engine says: whichever is more."""
        found = self.evidence if self.evidence.choices or self._before is None else self._before
        return max(found.captured_tokens, found.completion_tokens or 0)

    @property
    def told(self) -> bool:
        """The engine said how many tokens it sampled."""
        return self.evidence.completion_tokens is not None or self.evidence.aborted

    def fail(self, problem: str) -> bool:
        """The call ends with a problem. True: tokens were sampled for it in any case, before it was cut."""
        before, self._before = self._before, None
        kept = before is not None and not self.evidence.choices
        if before is not None and kept:
            self.evidence = before
        self.evidence.fail(problem)
        return kept

    async def take(self, worker: Worker, way: Way, response: Answer, lane: Lane) -> Outcome:
        """Read what the engine answers on one way. refused: it would not take prompt ids, so the call goes as a chat.

        Raises:
            AgentError: 502, it cannot be read.
            WorkerLost: the stream ended in the middle.
            WorkerFailed: 5xx, 429, or an error at the end of the stream that is not the request's fault.
        """
        worker.bytes_at = time.monotonic()
        if self._events is None:
            self.answers = Answers() if lane.remembers else None
        if way.as_chat is not None and 400 <= response.status < 500:
            lane.refused(response.status, await response.read())
            return "refused"
        if response.status == 429 or response.status >= 500:
            body, detail = await response.read(), f"it answered {response.status}"
            raise WorkerFailed(detail, status=response.status, headers=headers_back(response), body=body)
        if response.status != 200:
            return await self._pass_on(response)
        if response.content_type == "text/event-stream":
            return await self._stream(worker, way, response)
        return await self._whole(worker, way, response, cuts=self._ask.shows_text_alone and not lane.goes_on)

    async def _pass_on(self, response: Answer) -> Outcome:
        """The engine refused: its answer goes to the agent unchanged, and nothing was sampled."""
        await self._refuse(response.status, headers_back(response), await response.read())
        return "answered"

    async def _refuse(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._call.settle("refused by the engine", sampled=False)
        if self.began:
            raise AgentError(status if status in (400, 503) else 502, f"the worker answered {status}")
        await send_whole(self._call.send, status, headers, body)

    async def give_failure(self, failure: WorkerFailed, *, retry_after_s: float) -> None:
        """No other worker can be asked: what this one said goes to the agent, and when to come again if it is busy."""
        headers = list(failure.headers)
        if failure.status != 200:
            if failure.busy and not any(name == b"retry-after" for name, _ in headers):
                headers.append((b"retry-after", str(max(1, round(retry_after_s))).encode()))
            await self._refuse(failure.status, headers, failure.body)
            return
        assert self._events is not None
        await self._show(headers, self._events, self._events.end_with_error())

    async def _whole(self, worker: Worker, way: Way, response: Answer, *, cuts: bool) -> Outcome:
        """``cuts``: nobody but the evidence needs the log-probs."""
        body = await response.read()
        self.first_at = time.time()
        await self._call.turn(len(body))
        if way.prompt is not None:
            body = await way.prompt.cut(body)
        logprobs = None
        if cuts and way.read is None and (found := cut_logprobs(body)) is not None:
            body, logprobs = found
        try:
            payload = orjson.loads(body)
            if not isinstance(payload, dict):
                raise TypeError("not an object")
            if way.prompt is not None:
                way.prompt.put_back(payload)
            if way.as_chat is not None:
                payload = way.as_chat.whole(payload)
            if way.read is not None:
                payload = await way.read(payload)
                if self._ask.stream:
                    return await self._told_as_stream(worker, response, payload)
            if self.answers is not None:
                self.answers.take_whole(payload)
        except (*UNKNOWN_FORM, Unsaid) as e:  # orjson.JSONDecodeError is a ValueError
            self._call.settle(f"the engine's answer is not readable: {type(e).__name__}: {e}", sampled=True)
            raise AgentError(502, "the worker's answer is not readable") from e
        take_answer(payload, self._ask, self.evidence, logprobs)
        if self.evidence.aborted:
            self._cut = payload
            return "cut"
        strip_answer(payload, self._ask)
        shown = orjson.dumps(payload)
        self._call.settle(None, sampled=True, answer=shown if self._keeps_message else None)
        await send_whole(self._call.send, 200, headers_back(response), shown)
        return "answered"

    async def _told_as_stream(self, worker: Worker, response: Answer, payload: dict[str, Any]) -> Outcome:
        """An answer that only comes whole, for an agent that asked for a stream."""
        self._message = StreamedMessage() if self._keeps_message else None
        events = StreamFilter(self._ask, self.evidence, worker.fingerprint, answers=self.answers)
        running = bool((self._ask.body.get("stream_options") or {}).get("continuous_usage_stats"))
        shown = events.blocks(as_stream(payload, running=running))
        if self.evidence.aborted:
            return "cut"
        await self._show(headers_back(response, STREAMS), events, shown)
        return "answered"

    async def _stream(self, worker: Worker, way: Way, response: Answer) -> Outcome:
        """Events go on as they come. The end waits for the record: what the agent has in full is never lost."""
        events, headers = self._events, headers_back(response)
        if events is None:
            self._message = StreamedMessage() if self._keeps_message else None
            events = self._events = StreamFilter(
                self._ask, self.evidence, worker.fingerprint, translator=way.as_chat, answers=self.answers,
                prompt=way.prompt,
            )  # fmt: skip
        elif way.as_chat is not None and (rest := events.go_on(way.as_chat)):
            await self._show(headers, events, rest)
        blocks = SseBlocks()
        while data := await response.piece():
            worker.bytes_at = time.monotonic()
            try:
                found = blocks.feed(data)
                if way.prompt is not None and self.first_at is None:
                    found = [await way.prompt.cut(block) for block in found]
                shown = events.blocks(found)
            except EventTooLarge as e:
                raise unreadable(e) from e
            if self.first_at is None and self.evidence.choices:
                self.first_at = time.time()
            if (outcome := await self._passed(response, headers, events, shown)) is not None:
                return outcome
            if self.delivered and self.first_at is not None and self._message is None:
                flow = Flow(worker, blocks, events, self._call.piece)
                await response.pump(flow.take)
                await flow.settled()
                if (outcome := await self._passed(response, headers, events, flow.rest)) is not None:
                    return outcome
        raise WorkerLost("the stream ended without [DONE]")

    async def _passed(
        self, response: Answer, headers: list[tuple[bytes, bytes]], events: StreamFilter, shown: bytes
    ) -> Outcome | None:
        """Send on what one read brought; None: there is more to come."""
        if events.error is not None and error_status(events.error) < 500:
            shown += events.end_with_error()  # the request's own fault, found out late
        await self._show(headers, events, shown)
        if events.error is not None:
            raise WorkerFailed("it ended the stream with an error", status=200, headers=headers, body=events.error)
        if self.evidence.aborted:
            return "cut"
        if not events.done:
            return None
        await _read_out(response)
        return "answered"

    async def _show(self, headers: list[tuple[bytes, bytes]], events: StreamFilter, shown: bytes) -> None:
        """Send events on, the last ones after the record."""
        if self._message is not None:
            self._message.feed(shown)
        if events.done:
            self.evidence.settle()
            # An error before any token is a refusal that came after the stream's head.
            sampled = not self.evidence.errored or self.evidence.captured_tokens > 0
            self._call.settle(None, sampled=sampled, answer=None if self._message is None else self._message.dump())
        if not self.delivered and not (shown := self._opened(shown, events)):
            return
        if not shown:
            return
        if not self.began:
            self.began = True
            await self._call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._call.send({"type": "http.response.body", "body": shown, "more_body": not events.done})

    def _opened(self, shown: bytes, events: StreamFilter) -> bytes:
        """What goes out while the agent has nothing of the answer: comments, which keep it waiting, and the opening
        with the first token."""
        if b"data:" not in shown and not events.done:
            return shown
        self._opening += shown
        if self._opening.count(b"data:") <= self._openings and not events.done:
            return b""
        self.delivered = True
        shown, self._opening = self._opening, b""
        return shown

    def resume(self, lane: Lane) -> bool:
        """Whether the answer that broke off can go on; if so, what is there of it is kept."""
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
        if not lane.resume(self.evidence, head, logprobs):
            return False
        if self._events is not None:
            self._events.error = None
        if cut is None:
            self.evidence.reopen()
        else:  # told again as a whole
            self._before = self.evidence
            self._cut, self.evidence = None, Evidence(self._ask.n)
        return True


def error_status(event: bytes) -> int:
    """The status that an error event names; 500 where it names none."""
    try:
        code = orjson.loads(data_of(event) or b"")["error"]["code"]
    except UNKNOWN_FORM:
        return 500
    return code if isinstance(code, int) and 400 <= code < 600 else 500


async def _read_out(response: Answer) -> None:
    """Read to the end of the message, which follows [DONE] at once: only then can the connection serve another call."""
    try:
        async with asyncio.timeout(1):
            await response.read()
    except (TimeoutError, ConnectionError):
        response.close()
