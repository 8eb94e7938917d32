"""The attempts of one call on workers, until one answers.

gate ──► a worker ──► a way ──► answered
 ▲          ├─ connection failed, nothing delivered ──► gate, another worker
 │          ├─ ids refused ──► as chat, the same worker
 └──────────┴─ cut by the engine ──► gate, the same worker, it goes on from its tokens
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import aiohttp
import orjson
import structlog

from rollway_gateway.capture.answer import UNKNOWN_FORM
from rollway_gateway.capture.ask import Ask
from rollway_gateway.engine_answer import EngineAnswer, Outcome, Taker
from rollway_gateway.exact.lane import Lane, Way
from rollway_gateway.exact.request import asked_length
from rollway_gateway.openai_errors import AgentError
from rollway_gateway.pool import Pool, PoolCall
from rollway_gateway.session import Session
from rollway_gateway.settings import GatewaySettings
from rollway_gateway.upstream import WorkerLost, WorkerSilent, post
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
        self, call: Attempting, *, ask: Ask, session: Session, pool: Pool, client: aiohttp.ClientSession, lane: Lane,
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

        A lost connection is tried again while nothing was delivered: elsewhere, or where there is no other worker on
        the same one, whose idle connection may just have been closed by its keep-alive limit.

        Raises:
            AgentError: no worker answered, or the answer cannot go on.
        """
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
                if self._answer.began:
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
        self.worker = worker
        self._session.worker_id = worker.worker_id
        if not self._lane.goes_on:
            self.version = self._pool.version
            self._answer.restart()
        worker.active += 1
        try:
            yield
        finally:
            worker.active -= 1

    async def _attempt(self, worker: Worker) -> None:
        self.model = worker.model_for(self._ask.model) or ""
        cuts = 0
        while (outcome := await self._go(worker, await self._way(worker))) != "answered":
            if outcome == "refused" and self._lane.goes_on:
                raise self._given_up()
            if outcome == "cut":
                cuts += 1
                if cuts > CUTS or self._pool.gate == "fenced" or not self._answer.resume(self._lane):
                    raise self._given_up()
                log.info("call_cut", session_id=self._session.session_id, call_id=self._call.call_id)
                await self._gate()

    async def _way(self, worker: Worker) -> Way:
        return await self._lane.way(worker, self.model, self.version)

    async def _go(self, worker: Worker, way: Way) -> Outcome:
        answer, account, before, told = self._answer, worker.account, self._answer.sampled, False
        worker.begun += 1
        try:
            async with post(self._client, worker.api_url + way.path, way.body, self._headers) as response:
                outcome = await answer.take(worker, way, response, self._lane)
                worker.answered()
                told = outcome == "refused" or answer.told or 400 <= response.status < 500
                return outcome
        except WorkerLost as e:
            told = e.refused
            raise
        finally:
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

    async def _gate(self) -> None:
        """Wait while the pool is paused.

        Raises:
            AgentError: 503, it was fenced, or stays paused for too long.
        """
        while self._pool.gate == "paused":
            opened = asyncio.Event()
            self._pool.hold(self._call, opened.set)
            try:
                async with asyncio.timeout(self._settings.hold_s):
                    await opened.wait()
            except TimeoutError:
                raise AgentError(503, f"pool {self._pool.name!r} stays paused: try again", retry_after_s=1) from None
            finally:
                self._pool.release(self._call)
            self._pool.enter(self._call)

    def _given_up(self) -> AgentError:
        """An aborted generation is nobody's answer: the agent may ask again."""
        reason = "the engine aborted the generation"
        self._call.settle(reason, sampled=True)
        return AgentError(503, f"{reason}: try again", retry_after_s=1)
