"""The attempts of one call on workers, until one answers.

gate ──► a worker ──► a way ──► answered
 ▲          ├─ connection failed, nothing delivered ──► gate, another worker
 │          ├─ ids refused ──► as chat, the same worker
 └──────────┴─ cut by the engine ──► gate, the same worker, it goes on from its tokens
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Literal, Protocol

import orjson
import structlog

from rollway_gateway.capture.answer import UNKNOWN_FORM
from rollway_gateway.capture.ask import Ask
from rollway_gateway.connections import Connections
from rollway_gateway.engine_answer import EngineAnswer, Outcome, Taker
from rollway_gateway.exact.lane import Lane, Way
from rollway_gateway.exact.request import asked_length
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.pool import Pool, PoolCall, Seeking
from rollway_gateway.session import Session
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.upstream import WorkerFailed, WorkerLost, WorkerProblem, WorkerSilent, post
from rollway_gateway.worker import Worker

log = structlog.get_logger()

CUTS = 16
"""How often one answer may be cut and go on."""


class Attempting(PoolCall, Taker, Protocol):
    """What attempts need of their call."""

    @property
    def call_id(self) -> str: ...


class Attempts:
    """Of one call; `run` once."""

    def __init__(
        self, call: Attempting, *, ask: Ask, session: Session, pool: Pool, client: Connections, lane: Lane,
        answer: EngineAnswer, headers: dict[str, str], settings: GatewaySettings,
    ) -> None:  # fmt: skip
        """
        Args:
            headers: of the agent's request, to the worker.
        """
        self._call, self._ask, self._session, self._pool = call, ask, session, pool
        self._client, self._lane, self._answer, self._settings = client, lane, answer, settings
        own_id = ask.body.get("request_id")
        self.request_id = headers.get("x-request-id") or (own_id if isinstance(own_id, str) else call.call_id)
        self._headers = headers if own_id is not None else {"x-request-id": call.call_id, **headers}
        self.worker: Worker | None = None
        """The latest tried."""
        self.model = ""
        """As that worker names it."""
        self.version = pool.version
        """The policy that the answer began under."""

    async def run(self) -> None:
        """Until the call is answered, refusals of the engine included.

        A worker that fails before anything of its answer was delivered is tried again: elsewhere, or where there is no
        other worker and its connection was lost, on the same one, whose idle connection may just have been closed by
        its keep-alive limit. After that the answer goes on elsewhere from its tokens, where ids can say so.

        Raises:
            AgentError: no worker answered, or the answer cannot go on.
        """
        tried: list[Worker] = []
        cuts = 0
        while True:
            worker = await self._placed(tried)
            try:
                if await self._attempt(worker) == "answered":
                    return
                cuts += 1
                if cuts > CUTS or self._pool.gate == "fenced" or not self._answer.resume(self._lane):
                    raise self._given_up()
                log.info("call_cut", session_id=self._session.session_id, call_id=self._call.call_id)
                continue
            except WorkerProblem as e:
                self._blame(worker, e)
                tried.append(worker)
                if not await self._goes_on(worker, tried, e):
                    return
            finally:
                self._pool.free(worker)
            longest = self._settings.retry_backoff_s * 2 ** (len(tried) - 1)
            await asyncio.sleep(random.uniform(0, longest))

    async def _placed(self, tried: list[Worker]) -> Worker:
        """A worker with a place for the call.

        Raises:
            AgentError: 503, there is none, the pool was fenced, is full, or stays so for too long.
        """
        avoided = tried if self._pool.has_other(tried) else []
        if self._lane.goes_on:
            avoided = [w for w in self._pool.workers.values() if w in avoided or not self._lane.fits(w)]
        woken = asyncio.Event()
        seeking = Seeking(
            call=self._call, preferred=self._session.worker_id, avoided=avoided, room=self._settings.max_in_flight,
            first=self._lane.goes_on, wake=woken.set,
        )  # fmt: skip
        worker = self._pool.place(seeking, limit=self._settings.max_waiting)
        if worker is None:
            worker = await self._waited(seeking, woken)
        self.worker, self.model = worker, worker.model_for(self._ask.model) or ""
        if self._has_moved(tried):
            self._session.worker_id = worker.worker_id
        if not self._lane.goes_on:
            self.version = self._pool.version
            self._answer.restart()
        return worker

    def _has_moved(self, tried: list[Worker]) -> bool:
        """The session's own worker is no longer its own. One that is only full gets its next call."""
        own = self._pool.workers.get(self._session.worker_id or "")
        return own is None or not own.usable or own in tried or own.breaker.state != "closed"

    async def _waited(self, seeking: Seeking, woken: asyncio.Event) -> Worker:
        gate = self._pool.gate
        try:
            async with asyncio.timeout(self._settings.hold_s):
                await woken.wait()
        except TimeoutError:
            self._pool.stop_waiting(seeking)
            what = "stays paused" if gate == "paused" else "stays full"
            raise AgentError(503, f"pool {self._pool.name!r} {what}: try again", retry_after_s=1) from None
        except asyncio.CancelledError:
            self._pool.stop_waiting(seeking)
            raise
        if seeking.error is not None:
            raise seeking.error
        assert seeking.worker is not None
        return seeking.worker

    def _blame(self, worker: Worker, problem: WorkerProblem) -> None:
        """A connection that fails is as good as a failed check; a worker that says it is busy is well."""
        now = time.monotonic()
        if not (isinstance(problem, WorkerFailed) and problem.busy):
            worker.breaker.failed(now=now, limit=self._settings.breaker_failures)
        if isinstance(problem, WorkerLost):
            worker.check_failed(str(problem), now=now, limit=self._settings.health_failures, alive_window_s=0)
        log.warning(
            "worker_failed_call", worker=worker.worker_id, session_id=self._session.session_id,
            kind=type(problem).__name__, detail=str(problem), delivered=self._answer.delivered,
        )  # fmt: skip

    async def _goes_on(self, worker: Worker, tried: list[Worker], problem: WorkerProblem) -> bool:
        """Whether the call is tried again after a worker failed it. False: it has its answer, the worker's own.

        Raises:
            AgentError: it is not, and the agent gets this error.
        """
        again = len(tried) < self._settings.max_attempts
        same = isinstance(problem, WorkerLost) and not problem.refused and tried.count(worker) == 1
        if again and self._answer.delivered:
            again = self._moves(worker, tried)
        elif again and self._lane.goes_on:
            again = any(w.usable and w not in tried and self._lane.fits(w) for w in self._pool.workers.values())
        elif again:
            again = same or self._pool.has_other(tried)
        if again:
            return True
        if isinstance(problem, WorkerFailed):
            await self._answer.give_failure(problem, retry_after_s=self._settings.retry_after_s)
            return False
        if isinstance(problem, WorkerSilent):
            raise AgentError(504, f"worker {worker.worker_id} fell silent: {problem}") from problem
        raise AgentError(502, f"worker {worker.worker_id} failed: {problem}") from problem

    def _moves(self, worker: Worker, tried: list[Worker]) -> bool:
        """Whether an answer that the agent has a part of goes on at another worker: under the same policy, from ids,
        and with no text that the one that failed may have held back."""
        if self._pool.gate == "fenced" or self._pool.version != self.version or self._ask.body.get("stop"):
            return False
        if not any(w.usable and w not in tried and self._lane.fits(w) for w in self._pool.workers.values()):
            return False
        if not self._answer.resume(self._lane):
            return False
        log.info("call_moves", session_id=self._session.session_id, call_id=self._call.call_id, was=worker.worker_id)
        return True

    async def _attempt(self, worker: Worker) -> Literal["answered", "cut"]:
        while (outcome := await self._go(worker, await self._way(worker))) == "refused":
            if self._lane.goes_on:
                raise self._given_up()
        return outcome

    async def _way(self, worker: Worker) -> Way:
        return await self._lane.way(worker, self.model, self.version)

    async def _go(self, worker: Worker, way: Way) -> Outcome:
        answer, account, before, told = self._answer, worker.account, self._answer.sampled, False
        worker.begun += 1
        wait = asyncio.timeout(None)
        try:
            async with wait:
                worker.waits.add(wait)
                async with post(self._client, worker.api_url + way.path, way.body, self._headers) as response:
                    outcome = await answer.take(worker, way, response, self._lane)
                    worker.answered()
                    told = outcome == "refused" or answer.told or 400 <= response.status < 500
                    return outcome
        except WorkerProblem as e:
            told = (isinstance(e, WorkerLost) and e.refused) or (isinstance(e, WorkerFailed) and e.busy)
            raise
        except TimeoutError as e:
            raise WorkerSilent("it passes no checks and sends no byte") from e
        finally:
            worker.waits.discard(wait)
            if account is not None:
                tokens = answer.sampled - before
                account.add(tokens, besides=0 if told else self._besides(worker, tokens))

    def _besides(self, worker: Worker, tokens: int) -> int | None:
        """Most that was sampled after the first tokens of an answer that was not read to its end; None: no bound."""
        longest = asked_length(self._ask.body) or worker.context
        if not isinstance(longest, int) or self._ask.body.get("use_beam_search"):
            return None
        prompt = self._ask.body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
        return max(0, longest * self._ask.n * prompts - tokens)

    async def prompt_length(self, worker: Worker) -> int | None:
        """As the worker's /tokenize counts; None where it does not."""
        names = ("messages", "tools", "chat_template_kwargs") if self._ask.kind == "chat" else ("prompt",)
        body = {name: self._ask.body[name] for name in names if name in self._ask.body}
        async with post(
            self._client, worker.url + "/tokenize", orjson.dumps({**body, "model": self.model}), {}
        ) as answer:
            said = await answer.read()
        try:
            return int(orjson.loads(said)["count"]) if answer.status == 200 else None
        except UNKNOWN_FORM:
            return None

    def _given_up(self) -> AgentError:
        """An aborted generation is nobody's answer: the agent may ask again."""
        reason = "the engine aborted the generation"
        self._call.settle(reason, sampled=True)
        return AgentError(503, f"{reason}: try again", retry_after_s=1)
