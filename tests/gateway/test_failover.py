"""Workers that fail, hang, are busy, full or drained: calls go on elsewhere, or the agent is told to come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollway_gateway.breaker import Breaker
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.shapes import events_of
from tests.kit.clock import put_forward
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import EOS, Reply, ScriptedEngine, templated_ids, text_ids
from tests.kit.scripted_model import write_model

HI: list[Any] = [{"role": "user", "content": "hi"}]
OPENING = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":[1]}\n\n'
)
DEAD = {"message": "EngineCore encountered an issue", "type": "InternalServerError", "param": None, "code": 500}
BUSY = {"message": "The engine is currently busy", "type": "Service Unavailable", "param": None, "code": 503}
SSE = "text/event-stream"


def _events(*blocks: bytes) -> Reply:
    return Reply(raw=b"".join(blocks), raw_type=SSE)


BEFORE_ANY_TOKEN: dict[str, Reply] = {
    "the engine is dead": Reply(status=500, error=DEAD),
    "a proxy has lost its server": Reply(status=502, raw=b"<html>Bad Gateway</html>", raw_type="text/html"),
    "the server is starting": Reply(status=503, raw=b"", raw_type="text/plain"),
    "the queue is full": Reply(status=503, error=BUSY),
    "a proxy counts requests": Reply(status=429, raw=b"slow down", raw_type="text/plain"),
    "the connection is reset": Reply(die_after=0),
    "it hangs": Reply(hold=asyncio.Event()),
}
IN_A_STREAM: dict[str, Reply] = {
    "an error event": _events(OPENING, b'data: {"error":{"message":"dead","code":500}}\n\n', b"data: [DONE]\n\n"),
    "an error event, before it a comment": _events(b": keep-alive\n\n", b'data: {"error":{"message":"dead"}}\n\n'),
    "an end without [DONE]": _events(OPENING),
    "an end without anything": _events(b": keep-alive\n\n"),
    "a reset after the opening": Reply(die_after=1),
}
FAILURES = [(name, stream) for name in BEFORE_ANY_TOKEN for stream in (False, True) if name != "it hangs" or not stream]


def _ask(gateway: RunningGateway, ticket: dict[str, Any], route: str = "/chat/completions", **body: Any) -> Any:
    asked = {"model": "m", "messages": HI, **body}
    return asyncio.create_task(gateway.http.post(ticket["base_url"] + route, json=asked))


def _said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    if "stream" not in answer.headers["content-type"]:
        return str(answer.json()["choices"][0]["message"]["content"])
    events = events_of(answer.text)
    assert answer.text.endswith("data: [DONE]\n\n")
    chunks = [e for e in events if isinstance(e, dict)]
    assert [c for c in chunks if "error" in c] == [], answer.text
    assert sum("role" in choice["delta"] for c in chunks for choice in c["choices"]) == 1, "one opening"
    assert len({c["id"] for c in chunks}) == 1, "one answer"
    return "".join(choice["delta"].get("content") or "" for c in chunks for choice in c["choices"])


async def _worker(gateway: RunningGateway, at: int = 0) -> dict[str, Any]:
    state: dict[str, Any] = (await gateway.http.get("/v1/pools/default")).json()["workers"][at]
    return state


@asynccontextmanager
async def _two(**settings: Any) -> AsyncIterator[tuple[RunningGateway, ScriptedEngine, ScriptedEngine, dict[str, Any]]]:
    """A gateway before two engines, and a session that is at the first."""
    async with ScriptedEngine() as one, ScriptedEngine() as other, running_gateway(**settings) as gateway:
        await gateway.add(one, other)
        ticket = await gateway.open()
        assert _said(await _ask(gateway, ticket)) == "ok"
        assert (len(one.requests), len(other.requests)) == (1, 0)
        yield gateway, one, other, ticket


@pytest.mark.parametrize(("failure", "stream"), [*FAILURES, *((name, True) for name in IN_A_STREAM)])
async def test_a_worker_that_fails_before_any_token_is_none_of_the_agents_business(failure: str, stream: bool) -> None:
    """The session moves, and trains whole."""
    async with _two(upstream_inactivity_s=20) as (gateway, one, other, ticket):
        reply = BEFORE_ANY_TOKEN.get(failure) or IN_A_STREAM[failure]
        one.script(Reply(hold=asyncio.Event()) if reply.hold is not None else reply)
        other.script(Reply("from another"))
        asking = _ask(gateway, ticket, stream=stream)
        if reply.hold is not None:
            await eventually(lambda: one.on_hold, "a generation on hold")
            put_forward(21)
        assert _said(await asking) == "from another"
        assert _said(await _ask(gateway, ticket, stream=stream)) == "ok"
        assert (len(one.requests), len(other.requests)) == (2, 2), "tried once elsewhere, and stays there"
        made = await gateway.settled(ticket["session_id"])
        assert made.incomplete is None and [t.incomplete for t in made.turns] == [None] * 3
        assert made.metadata["failed_calls"] == 0
        assert (await _worker(gateway))["healthy"] is True, "one failure does not condemn it"


async def test_tokens_sampled_by_a_worker_that_failed_are_lost_and_said_to_be(tmp_path: Path) -> None:
    """Two tokens came, no text of them: the agent saw nothing, so all of it is sampled anew."""
    chunk = OPENING.replace(b'"delta":{"role":"assistant","content":""}', b'"delta":{},"token_ids":[7,8]')
    async with _two() as (gateway, one, _, ticket):
        one.script(_events(chunk, b'data: {"error":{"message":"dead","code":500}}\n\n'))
        assert _said(await _ask(gateway, ticket, stream=True)) == "ok"
        made = await gateway.settled(ticket["session_id"])
        assert (made.incomplete, len(made.turns), made.ledger.trained, made.ledger.lost) == (None, 2, 6, 2)


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_with_nowhere_else_to_go_the_workers_own_words_reach_the_agent(
    gateway: RunningGateway, engine: ScriptedEngine, status: int
) -> None:
    error = {**BUSY, "code": status}
    engine.script(*[Reply(status=status, error=error)] * 2)
    ticket = await gateway.open()
    answer = await _ask(gateway, ticket)
    assert (answer.status_code, answer.json()) == (status, {"error": error})
    assert ("retry-after" in answer.headers) is (status == 503)
    said = await _ask(gateway, ticket, "/messages", max_tokens=5)
    assert (said.json()["type"], "retry-after" in said.headers) == ("error", status == 503)
    assert len(engine.requests) == 2, "not asked again and again"


async def test_a_failure_everywhere_is_bounded() -> None:
    async with ScriptedEngine() as a, ScriptedEngine() as b, ScriptedEngine() as c, ScriptedEngine() as d:
        engines = (a, b, c, d)
        for engine in engines:
            engine.answer = lambda body: Reply(status=500, error=DEAD)
        async with running_gateway(max_attempts=3, retry_backoff_s=0.01) as gateway:
            await gateway.add(*engines)
            answer = await _ask(gateway, await gateway.open())
            assert (answer.status_code, answer.json()) == (500, {"error": DEAD})
            assert sorted(len(engine.requests) for engine in engines) == [0, 1, 1, 1]


async def test_an_error_that_is_the_requests_own_fault_is_not_tried_elsewhere() -> None:
    async with _two() as (gateway, one, other, ticket):
        one.script(_events(OPENING, b'data: {"error":{"message":"too long","code":400}}\n\n', b"data: [DONE]\n\n"))
        answer = await _ask(gateway, ticket, stream=True)
        assert '"too long"' in answer.text and answer.text.endswith("data: [DONE]\n\n")
        one.script(Reply(status=400, error={"message": "no"}))
        assert (await _ask(gateway, ticket)).status_code == 400
        assert other.requests == []


@asynccontextmanager
async def _two_exact(
    tmp_path: Path, **settings: Any
) -> AsyncIterator[tuple[RunningGateway, ScriptedEngine, ScriptedEngine, dict[str, Any]]]:
    folder = write_model(tmp_path / "model")
    async with (
        ScriptedEngine(folder=folder) as one,
        ScriptedEngine(folder=folder) as other,
        running_gateway(**settings) as gateway,
    ):
        await gateway.add(one, other)
        await gateway.http.post("/v1/pools/default/open", json={"policy_version": 3})
        yield gateway, one, other, await gateway.open()


@pytest.mark.parametrize("stream", [False, True])
async def test_in_exact_mode_the_same_ids_are_prompted_elsewhere(tmp_path: Path, stream: bool) -> None:
    async with _two_exact(tmp_path) as (gateway, one, other, ticket):
        said = _said(await _ask(gateway, ticket))
        one.script(Reply(status=500, error=DEAD))
        more = [*HI, {"role": "assistant", "content": said}, {"role": "user", "content": "b"}]
        assert _said(await _ask(gateway, ticket, messages=more, stream=stream)) == "ok"
        prompts = [[body["prompt"] for path, body in e.requests if path == "/v1/completions"] for e in (one, other)]
        assert prompts[0] == prompts[1] and len(prompts[0]) == 1
        made = await gateway.seal(ticket["session_id"])
        assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1)


@pytest.mark.parametrize("how", ["a reset", "an error event"])
async def test_an_answer_that_breaks_off_goes_on_at_another_worker(tmp_path: Path, how: str) -> None:
    """From its tokens, in the same answer: the agent sees no seam, and the turn trains."""
    async with _two_exact(tmp_path) as (gateway, one, other, ticket):
        one.script(Reply("begun here", die_after=6) if how == "a reset" else Reply("begun", error=DEAD))
        other.script(Reply(", ended there"))
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        answer = await _ask(gateway, ticket, **asked)
        begun = other.requests[0][1]["prompt"][len(templated_ids(HI)) :]
        text = bytes(i - text_ids("a")[0] + ord("a") for i in begun if i != EOS).decode()
        assert text and _said(answer) == text + ", ended there"
        made = await gateway.seal(ticket["session_id"])
        (turn,) = made.turns
        sampled = [*begun, *text_ids(", ended there"), EOS]
        assert (turn.incomplete, turn.completion_token_ids.tolist()) == (None, sampled)
        usage = [e["usage"] for e in events_of(answer.text) if isinstance(e, dict) and e.get("usage")]
        assert usage[-1]["completion_tokens"] == len(sampled)
        assert (made.mode, made.incomplete, made.ledger.trained, made.ledger.lost) == ("exact", None, len(sampled), 0)


@pytest.mark.parametrize("why", ["mirror mode", "another policy", "stop strings", "nowhere to go"])
async def test_an_answer_that_cannot_go_on_exactly_ends_with_an_error_and_its_turn_is_marked(
    tmp_path: Path, why: str
) -> None:
    mode = "mirror" if why == "mirror mode" else "exact"
    async with _two_exact(tmp_path, mode=mode) as (gateway, one, other, ticket):
        one.answer = lambda body: Reply("begun here, and never ended", die_after=6)
        if why == "nowhere to go":
            other.answer = one.answer
        pool = gateway.inside.pools["default"]
        if why == "another policy":

            def newer(body: dict[str, Any]) -> Reply:
                pool.policy_version = 4
                return Reply("begun here, and never ended", die_after=6)

            one.answer = newer
        answer = await _ask(gateway, ticket, stream=True, **({"stop": ["zzz"]} if why == "stop strings" else {}))
        assert '"code":502' in answer.text and answer.text.endswith("data: [DONE]\n\n")
        made = await gateway.settled(ticket["session_id"])
        (turn,) = made.turns
        assert turn.incomplete is not None and "failed" in turn.incomplete
        assert (made.incomplete, made.ledger.trained) == (None, 0)
        assert made.ledger.lost == made.ledger.sampled > 0
        assert len(other.requests) == (1 if why == "nowhere to go" else 0)


async def test_a_worker_that_hangs_loses_its_calls_when_its_checks_say_so() -> None:
    """Long before an answer's own time is over. A frozen server keeps its connections."""
    async with _two(hang_s=0.3, health_failures=2) as (gateway, one, _, ticket):
        one.script(Reply(hold=asyncio.Event()))
        asking = _ask(gateway, ticket)
        await eventually(lambda: one.on_hold, "a generation on hold")
        one.healthy = False
        assert _said(await asking) == "ok"
        assert (await gateway.settled(ticket["session_id"])).incomplete is None


async def test_a_busy_worker_whose_checks_pass_is_waited_for() -> None:
    hold = asyncio.Event()
    async with _two(hang_s=0.2, health_failures=1) as (gateway, one, other, ticket):
        one.script(Reply("slow", hold=hold))
        asking = _ask(gateway, ticket)
        await eventually(lambda: one.on_hold, "a generation on hold")
        (worker, _) = gateway.inside.pools["default"].workers.values()
        since = worker.passed_at
        await eventually(lambda: worker.passed_at > since + 0.5, "checks of half a second passed")
        hold.set()
        assert (_said(await asking), other.requests) == ("slow", [])


async def test_a_worker_that_fails_call_after_call_is_passed_by_and_tried_again(engine: ScriptedEngine) -> None:
    """Its checks pass all the while."""
    async with ScriptedEngine() as other, running_gateway(breaker_failures=3, breaker_open_s=3600) as gateway:
        await gateway.add(engine, other)
        engine.answer = lambda body: Reply(status=500, error=DEAD)
        for _ in range(12):
            assert _said(await _ask(gateway, await gateway.open())) == "ok"
        assert ((await _worker(gateway))["breaker"], (await _worker(gateway))["healthy"]) == ("open", True)
        assert len(engine.requests) == 3, "passed by from then on"

        async def half_open() -> bool:
            return bool((await _worker(gateway))["breaker"] == "half_open")

        inside = next(iter(gateway.inside.pools["default"].workers.values()))
        for hours, asked in ((1, 4), (2, 5)):  # it fails the call that tries, and stays open for twice as long
            inside.breaker._opened_at -= 3600 * hours
            await eventually(half_open, "a call may try")
            if asked == 5:
                engine.answer = lambda body: Reply("well again")
            while len(engine.requests) < asked:
                assert _said(await _ask(gateway, await gateway.open())) in ("ok", "well again")
        assert (await _worker(gateway))["breaker"] == "closed"


async def test_the_last_worker_is_asked_whatever_its_breaker_says(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    engine.answer = lambda body: Reply(status=500, error=DEAD)
    ticket = await gateway.open()
    for _ in range(6):
        assert (await _ask(gateway, ticket)).status_code == 500
    engine.answer = lambda body: Reply()
    assert _said(await _ask(gateway, ticket)) == "ok"
    assert (await _worker(gateway))["breaker"] == "closed"


def test_a_breakers_life() -> None:
    breaker = Breaker()
    breaker.failed(now=0, limit=2)
    breaker.answered()
    breaker.failed(now=1, limit=2)
    assert breaker.admits(5) and breaker.state == "closed", "not in a row"
    breaker.failed(now=2, limit=2)
    breaker.checked(now=2.9, open_s=1)
    assert breaker.state == "open" and not breaker.admits(0)
    breaker.checked(now=3, open_s=1)
    assert breaker.state == "half_open" and breaker.admits(0) and not breaker.admits(1)
    breaker.failed(now=4, limit=2)
    breaker.checked(now=5.9, open_s=1)
    assert breaker.state == "open", "twice as long the second time"
    breaker.checked(now=6, open_s=1)
    breaker.answered()
    assert breaker.state == "closed"


async def _drain(gateway: RunningGateway, worker_id: str, **how: Any) -> dict[str, Any]:
    answer = await gateway.http.post(f"/v1/pools/default/workers/{worker_id}/drain", json=how)
    assert answer.status_code == 200, answer.text
    state: dict[str, Any] = answer.json()
    return state


async def test_a_drained_worker_ends_what_it_has_and_its_sessions_move() -> None:
    hold = asyncio.Event()
    async with _two() as (gateway, one, other, ticket):
        worker_id = (await _worker(gateway))["worker_id"]
        one.script(Reply("to its end", hold=hold))
        slow = _ask(gateway, ticket)
        await eventually(lambda: one.on_hold, "a call in flight")
        state = await _drain(gateway, worker_id, timeout_s=0.05)
        assert (state["draining"], state["active_requests"]) == (True, 1)
        draining = asyncio.create_task(_drain(gateway, worker_id))
        assert _said(await _ask(gateway, ticket)) == "ok"
        assert (len(one.requests), len(other.requests)) == (2, 1)
        hold.set()
        assert (_said(await slow), (await draining)["active_requests"]) == ("to its end", 0)
        assert (await gateway.add(one))[0]["draining"] is False
        assert (await gateway.http.post("/v1/pools/default/workers/nope/drain", json={})).status_code == 404


async def test_calls_wait_for_a_place_and_no_more_than_so_many(engine: ScriptedEngine) -> None:
    """First come, first served; beyond that the agent is told to come again, in its provider's words."""
    async with running_gateway(max_in_flight=1, max_waiting=2) as gateway:
        await gateway.add(engine)
        tickets = [await gateway.open() for _ in range(5)]
        hold = asyncio.Event()
        engine.script(Reply("0", hold=hold), Reply("1"), Reply("2"))

        async def waiting(n: int) -> None:
            async def so_many() -> bool:
                return bool((await gateway.http.get("/v1/pools/default")).json()["waiting"] == n)

            await eventually(so_many, f"{n} calls wait")

        calls = [_ask(gateway, tickets[0])]
        await eventually(lambda: engine.on_hold, "a call at the worker")
        for n in (1, 2):
            calls.append(_ask(gateway, tickets[n]))
            await waiting(n)
        state = (await gateway.http.get("/v1/pools/default")).json()
        assert (state["in_flight"], state["held"], state["workers"][0]["active_requests"]) == (1, 0, 1)
        full = await _ask(gateway, tickets[3])
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert full.json()["error"]["type"] == "ServiceUnavailableError" and "full" in full.json()["error"]["message"]
        full = await _ask(gateway, tickets[4], "/messages", max_tokens=5)
        assert (full.headers["retry-after"], full.json()["type"]) == ("1", "error")
        assert full.json()["error"]["type"] == "overloaded_error" and full.status_code == 529
        hold.set()
        assert [_said(await call) for call in calls] == ["0", "1", "2"]
        assert len(engine.requests) == 3


async def test_a_call_that_waits_leaves_with_its_client_its_session_and_the_fence(engine: ScriptedEngine) -> None:
    async with running_gateway(max_in_flight=1) as gateway:
        await gateway.add(engine)
        hold = asyncio.Event()
        engine.script(Reply("held", hold=hold))
        tickets = [await gateway.open() for _ in range(4)]
        calls = [_ask(gateway, tickets[0])]
        await eventually(lambda: engine.on_hold, "a call at the worker")
        pool = gateway.inside.pools["default"]
        for n in (1, 2, 3):
            calls.append(_ask(gateway, tickets[n]))
            await eventually(lambda n=n: gateway.inside.pool_state(pool).waiting == n, f"{n} wait")
        calls[1].cancel()
        await eventually(lambda: gateway.inside.pool_state(pool).waiting == 2, "one left with its client")
        await gateway.seal(tickets[2]["session_id"])
        assert (await calls[2]).status_code == 410
        fencing = asyncio.create_task(gateway.http.post("/v1/pools/default/fence", json={"drain_timeout_s": 30}))
        assert (await calls[3]).status_code == 503
        hold.set()
        assert _said(await calls[0]) == "held"
        assert (await fencing).json()["in_flight"] == 0
        (worker,) = pool.workers.values()
        assert (worker.active, len(engine.requests)) == (0, 1)


async def test_a_full_worker_does_not_hold_up_what_another_can_take() -> None:
    """The session comes back to its own when that has a place again: only this call went elsewhere."""
    hold = asyncio.Event()
    async with _two(max_in_flight=1) as (gateway, one, other, ticket):
        one.script(Reply("slow", hold=hold))
        slow = _ask(gateway, ticket)
        await eventually(lambda: one.on_hold, "its worker is full")
        assert _said(await _ask(gateway, ticket)) == "ok"
        hold.set()
        assert _said(await slow) == "slow"
        assert _said(await _ask(gateway, ticket)) == "ok"
        assert (len(one.requests), len(other.requests)) == (3, 1)
