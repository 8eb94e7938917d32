"""`ScriptedDispatcher`: a real HTTP server that follows the dispatcher's API and does what a test scripts.

It runs no agents: a test says when and how each rollout ends, and which answers go wrong. Only for faults that the real
dispatcher cannot be asked for. State survives `restart`, as the real one's SQLite file does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from rollway_wire.batch import (
    BatchRequest,
    BatchState,
    BatchStatus,
    RolloutResult,
    RolloutState,
    RolloutView,
    Timings,
)
from rollway_wire.codec import MEDIA_TYPE, dump_packed, to_json_tree, trajectory_tree
from rollway_wire.failures import Failure, FailureType
from rollway_wire.ids import new_batch_id, new_session_id
from rollway_wire.problems import Conflict, NotFound, RollwayError
from rollway_wire.tokens import Ledger, Sequence, Trajectory, Turn
from tests.kit.deadlines import until
from tests.kit.ports import HeldPort, hold

POLL_S = 0.01
Fault = Callable[[Response], Response]
"""Makes a wrong answer from the right one."""


def unwell(status: int, retry_after_s: int | None = None) -> Fault:
    """A problem answer of this status."""
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return lambda _: JSONResponse({"detail": f"scripted {status}"}, status, headers)


def torn(answer: Response) -> Response:
    """The right answer with its last bytes missing, and a length that agrees: only a checksum can tell."""
    return Response(bytes(answer.body)[:-8], answer.status_code, media_type=answer.media_type)


def cut_off(answer: Response) -> Response:
    """The connection ends before the promised length."""
    made = Response(bytes(answer.body)[:-8], answer.status_code, media_type=answer.media_type)
    made.headers["content-length"] = str(len(answer.body))
    return made


def web_page(_: Response) -> Response:
    """What some other service answers."""
    return Response(b"<html>hello</html>", media_type="text/html")


def a_trajectory(session_id: str, tokens: int = 4) -> Trajectory:
    """One turn of ``tokens`` sampled tokens after a prompt of two."""
    prompt, sampled = array("i", [1, 2]), array("i", range(10, 10 + tokens))
    logprobs = array("f", [-0.5] * tokens)
    turn = Turn(
        turn_id="t0", call_id="c0", index=0, prompt_token_ids=prompt, completion_token_ids=sampled, logprobs=logprobs,
        finish_reason="stop", policy_version_start=3, policy_version_end=3, started_at=1.0, ended_at=2.0,
    )  # fmt: skip
    row = Sequence(
        token_ids=prompt + sampled,
        loss_mask=array("B", [0, 0] + [1] * tokens),
        logprobs=array("f", [0.0, 0.0]) + logprobs,
        policy_versions=array("i", [-1, -1] + [3] * tokens),
        turn_ids=("t0",),
    )
    ledger = Ledger(sampled=tokens, trained=tokens)
    return Trajectory(session_id=session_id, mode="mirror", turns=(turn,), sequences=(row,), ledger=ledger)


@dataclass
class ScriptedBatch:
    batch_id: str
    request: BatchRequest
    results: list[dict[str, Any]] = field(default_factory=list)
    cancelled: bool = False

    @property
    def total(self) -> int:
        return sum(group.n for group in self.request.groups)

    @property
    def finished(self) -> bool:
        return len(self.results) == self.total

    def end(
        self, group_id: str, *, index: int = 0, state: RolloutState = RolloutState.SUCCEEDED,
        result: dict[str, Any] | None = None, failure: Failure | None = None, tokens: int = 0,
    ) -> None:  # fmt: skip
        """End one rollout. Without a failure it succeeds with ``result`` (reward 1.0 by default)."""
        session_id, now = new_session_id(), time.time()
        if failure is None and state is RolloutState.SUCCEEDED:
            result = result or {"status_code": 200, "stop_reason": "end_turn", "rewards": 1.0, "result_key": "k.json"}
        rollout = RolloutResult(
            rollout_id=f"{self.batch_id}/{group_id}/{index}", batch_id=self.batch_id, group_id=group_id, index=index,
            state=RolloutState.FAILED if failure else state, attempt=1, session_id=session_id, failure=failure,
            rewards=[1.0] if failure is None else None, result=result,
            timings=Timings(admitted_at=now - 3, invoked_at=now - 2, finished_at=now),
        )  # fmt: skip
        tree = trajectory_tree(a_trajectory(session_id, tokens)) if tokens else None
        self.results.append({"rollout": rollout.model_dump(mode="json"), "trajectory": tree})

    def fail(self, group_id: str, kind: FailureType, message: str = "scripted", **rest: Any) -> None:
        self.end(group_id, failure=Failure(type=kind, message=message), **rest)

    def status(self) -> BatchStatus:
        states = [RolloutState(r["rollout"]["state"]) for r in self.results]
        counts = {state: states.count(state) for state in set(states)}
        return BatchStatus(
            batch_id=self.batch_id, experiment_id=self.request.experiment_id,
            state=BatchState.FINISHED if self.finished else BatchState.RUNNING,
            created_at=1.0, finished_at=2.0 if self.finished else None, total=self.total, counts=counts, failures={},
        )  # fmt: skip

    def cancel(self) -> None:
        self.cancelled = True
        ended = {r["rollout"]["group_id"] for r in self.results}
        for group in self.request.groups:
            if group.group_id not in ended:
                self.end(group.group_id, state=RolloutState.CANCELLED)


class ScriptedDispatcher:
    """``url`` stays the same over `stop` and `start`. ``faults`` go wrong one a request, on the routes they name."""

    def __init__(self) -> None:
        self.batches: dict[str, ScriptedBatch] = {}
        self.keys: dict[str, tuple[bytes, str]] = {}
        self.posts = 0
        self.polls = 0
        self.waiting = 0
        """Result polls being held open."""
        self.faults: dict[str, deque[Fault]] = {"submit": deque(), "results": deque(), "cancel": deque()}
        self.on_batch: Callable[[ScriptedBatch], None] = lambda _: None
        self.submitting = 0
        """Batches that were posted and are not taken yet: as many as come while ``takes_batches`` is not set."""
        self.takes_batches = threading.Event()
        self.takes_batches.set()
        self._held = HeldPort()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return self._held.url

    def start(self) -> None:
        sock = hold(self._held.number)
        config = uvicorn.Config(
            _app(self), log_level="critical", ws="none", lifespan="off", timeout_graceful_shutdown=5
        )
        server = self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        self._thread.start()
        until(lambda: server.started, "the scripted dispatcher serves")

    def stop(self) -> None:
        assert self._server is not None and self._thread is not None
        self._server.should_exit = True
        self._thread.join()

    def close(self) -> None:
        """Stop it for good."""
        self.takes_batches.set()
        if not self.stopping:
            self.stop()
        self._held.close()

    @property
    def stopping(self) -> bool:
        return self._server is None or self._server.should_exit

    def only_batch(self) -> ScriptedBatch:
        """The one batch there is; waits for it."""
        until(lambda: self.batches, "a batch was posted")
        (batch,) = self.batches.values()
        return batch

    def post(self, key: str, body: bytes) -> ScriptedBatch:
        self.posts += 1
        if key in self.keys:
            before, batch_id = self.keys[key]
            if before != body:
                raise Conflict("this Idempotency-Key was used for another request")
            return self.batches[batch_id]
        batch = ScriptedBatch(new_batch_id(), BatchRequest.model_validate(orjson.loads(body)))
        self.keys[key] = (body, batch.batch_id)
        self.batches[batch.batch_id] = batch
        self.on_batch(batch)
        return batch

    def find(self, batch_id: str) -> ScriptedBatch:
        if batch_id not in self.batches:
            raise NotFound(f"no batch {batch_id}")
        return self.batches[batch_id]

    def faulty(self, route: str, answer: Response) -> Response:
        faults = self.faults[route]
        return faults.popleft()(answer) if faults else answer


def _app(script: ScriptedDispatcher) -> FastAPI:
    """Past 50 lines because it is all of the routes, a few lines each, over one script."""
    app = FastAPI()

    @app.exception_handler(RollwayError)
    async def problem(_: Request, error: RollwayError) -> Response:
        return JSONResponse(error.problem(), error.status)

    @app.post("/v1/batches")
    async def submit(request: Request) -> Response:
        body = await request.body()
        script.submitting += 1
        try:
            while not script.takes_batches.is_set():  # noqa: ASYNC110 - set by a test in another thread
                await asyncio.sleep(POLL_S)
        finally:
            script.submitting -= 1
        batch = script.post(request.headers["idempotency-key"], body)
        return script.faulty("submit", _json(batch.status()))

    @app.get("/v1/batches")
    async def batches() -> Response:
        return Response(orjson.dumps([b.status().model_dump(mode="json") for b in script.batches.values()]))

    @app.get("/v1/batches/{batch_id}")
    async def status(batch_id: str) -> Response:
        return _json(script.find(batch_id).status())

    @app.get("/v1/batches/{batch_id}/rollouts")
    async def rollouts(batch_id: str) -> Response:
        batch = script.find(batch_id)
        views = [
            RolloutView(
                rollout_id=f"{batch_id}/{g.group_id}/0", batch_id=batch_id, group_id=g.group_id, index=0,
                state=RolloutState.RUNNING, attempt=1, session_id=None,
            ).model_dump(mode="json")
            for g in batch.request.groups
        ]  # fmt: skip
        return Response(orjson.dumps(views))

    @app.get("/v1/batches/{batch_id}/results")
    async def results(batch_id: str, request: Request, cursor: int, limit: int, wait_s: float) -> Response:
        script.polls += 1
        batch, ends = script.find(batch_id), time.monotonic() + wait_s
        script.waiting += 1
        try:
            while len(batch.results) <= cursor and not batch.finished and time.monotonic() < ends:
                if script.stopping:
                    break
                await asyncio.sleep(POLL_S)
        finally:
            script.waiting -= 1
        found = batch.results[cursor : cursor + limit]
        finished = batch.finished and cursor + len(found) == batch.total
        page = {"results": found, "cursor": cursor + len(found), "finished": finished}
        if request.headers["accept"] == MEDIA_TYPE:
            return script.faulty("results", Response(dump_packed(page), media_type=MEDIA_TYPE))
        return script.faulty("results", Response(orjson.dumps(to_json_tree(page)), media_type="application/json"))

    @app.post("/v1/batches/{batch_id}/cancel")
    async def cancel(batch_id: str) -> Response:
        batch = script.find(batch_id)
        batch.cancel()
        return script.faulty("cancel", _json(batch.status()))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def _json(status: BatchStatus) -> Response:
    return Response(status.model_dump_json(), media_type="application/json")


@contextlib.contextmanager
def scripted_dispatcher() -> Iterator[ScriptedDispatcher]:
    script = ScriptedDispatcher()
    try:
        yield script
    finally:
        script.close()
