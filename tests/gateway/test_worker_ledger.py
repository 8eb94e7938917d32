"""Tokens captured from a worker against its engine's own counter: to the token, whatever became of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from rollway_gateway import engine_answer
from rollway_gateway import gateway as gateway_module
from rollway_gateway.connection import Answer
from rollway_gateway.engine_account import EngineAccount
from rollway_gateway.engine_count import EngineCount, read_count
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.under_way import under_way
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.scripted_model import write_model

HI: list[Any] = [{"role": "user", "content": "hi"}]


def _ask(gateway: RunningGateway, ticket: dict[str, Any], **body: Any) -> asyncio.Task[httpx.Response]:
    asked = {"model": "m", "messages": HI, **body}
    return asyncio.create_task(gateway.http.post(ticket["base_url"] + "/chat/completions", json=asked))


async def _ledgers(gateway: RunningGateway, how: str = "?reconcile=true") -> list[dict[str, Any] | None]:
    answer = await gateway.http.get(f"/v1/pools/default{how}")
    assert answer.status_code == 200, answer.text
    return [worker["ledger"] for worker in answer.json()["workers"]]


async def _ledger(gateway: RunningGateway, how: str = "?reconcile=true") -> dict[str, Any]:
    (ledger,) = await _ledgers(gateway, how)
    assert ledger is not None
    return ledger


@pytest.fixture(autouse=True)
def comparing_takes_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the numbers would else be left for another time."""
    monkeypatch.setattr(gateway_module, "RECONCILE_S", 60.0)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """It has counted for others before."""
    async with ScriptedEngine() as running:
        running.sampled = 1000
        yield running


async def test_every_token_of_every_kind_of_call_is_counted(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    assert (await _ask(gateway, ticket)).status_code == 200
    assert (await _ask(gateway, ticket, stream=True)).status_code == 200
    assert (await _ask(gateway, ticket, n=3)).status_code == 200
    engine.script(
        Reply("unasked", drop=frozenset({"token_ids", "logprobs"})), Reply(status=400, error={"message": "x"})
    )
    assert (await _ask(gateway, ticket, stream=True)).status_code == 200
    assert (await _ask(gateway, ticket)).status_code == 400
    text = {"model": "m", "prompt": ["a", "b"], "max_tokens": 9}
    assert (await gateway.http.post(ticket["base_url"] + "/completions", json=text)).status_code == 200
    ledger = await _ledger(gateway)
    assert ledger["captured"] == ledger["engine"] == engine.sampled - 1000 > 0
    assert (ledger["difference"], ledger["closes"], ledger["pending"], ledger["uncertain"]) == (0, True, 0, 0)
    assert (ledger["cut_off"], ledger["foreign"], ledger["uncounted"]) == (0, 0, 0)
    made = await gateway.settled(ticket["session_id"])
    assert made.ledger.sampled == ledger["captured"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_cut_and_gone_on_with_is_counted_once(tmp_path: Path, stream: bool) -> None:
    async with ScriptedEngine(folder=write_model(tmp_path / "model")) as engine, running_gateway() as gateway:
        await gateway.add(engine)
        engine.script(Reply("one ", finish_reason="abort"), Reply("two ", finish_reason="abort"), Reply("three"))
        assert (await _ask(gateway, await gateway.open(), stream=stream)).status_code == 200
        ledger = await _ledger(gateway)
        assert (ledger["captured"], ledger["difference"], ledger["closes"]) == (len("one two three") + 1, 0, True)


@pytest.mark.parametrize(("stream", "seen"), [(False, 0), (True, 1)])
async def test_what_was_sampled_for_a_client_that_left_is_known_to_the_engine_alone(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool, seen: int
) -> None:
    """Bounded by what the call could sample, until the engine's counter tells."""
    begun = engine.sampled
    engine.script(Reply("never read to its end", hold=asyncio.Event(), also_sampled=7))
    body = {"model": "m", "messages": HI, "stream": stream, "max_tokens": 40}
    asking = await under_way(gateway, engine, await gateway.open(), body)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    pool = gateway.inside.pools["default"]
    await eventually(lambda: not pool.in_flight and not engine.active, "the call has ended")
    (worker,) = pool.workers.values()
    assert worker.account is not None
    if worker.account.state().pending or worker.account.state().uncertain:  # no check came between
        assert (worker.account.state().captured, worker.account.state().uncertain) == (seen, 40 - seen)
    ledger = await _ledger(gateway)
    assert (ledger["captured"], ledger["engine"]) == (seen, engine.sampled - begun)
    assert ledger["cut_off"] == engine.sampled - begun - seen >= 7
    assert (ledger["closes"], ledger["foreign"]) == (True, 0)


async def test_tokens_of_a_worker_that_broke_off_are_its_own_and_lost_in_the_session(engine: ScriptedEngine) -> None:
    """They are in no turn, and not forgotten."""
    async with ScriptedEngine() as other, running_gateway() as gateway:
        first, _ = await gateway.add(engine, other)
        ticket = await gateway.open()
        engine.script(Reply("whole, and never arrives", die_after=0, also_sampled=24))
        assert (await _ask(gateway, ticket, max_tokens=50)).status_code == 200
        one, another = await _ledgers(gateway)
        assert one is not None and another is not None and first["ledger"]["captured"] == 0
        assert (one["captured"], one["cut_off"], one["closes"]) == (0, 24, True)
        assert (another["captured"], another["difference"], another["closes"]) == (len("ok") + 1, 0, True)


async def test_a_stream_that_the_agent_has_is_compared_once_its_worker_has_ended_it(
    gateway: RunningGateway, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has [DONE] a moment before the engine's message ends; who asks for the numbers then gets them."""
    ended, read_out = asyncio.Event(), engine_answer._read_out

    async def late(response: Answer) -> None:
        await ended.wait()
        await read_out(response)

    monkeypatch.setattr(engine_answer, "_read_out", late)
    url = (await gateway.open())["base_url"] + "/chat/completions"
    async with gateway.http.stream("POST", url, json={"model": "m", "messages": HI, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                break
        (worker,) = gateway.inside.workers()
        asking = asyncio.create_task(_ledger(gateway))
        await eventually(lambda: worker.when_idle or asking.done(), "the comparison waits for the worker")
        ended.set()
        ledger = await asking
    assert (ledger["captured"], ledger["engine"], ledger["pending"]) == (3, 3, 0)


async def test_another_client_of_the_engine_is_seen_and_said(engine: ScriptedEngine) -> None:
    async with running_gateway(health_interval_s=3600.0) as gateway, httpx.AsyncClient() as stranger:
        await gateway.add(engine)
        body = {"model": "m", "messages": HI}
        assert (await stranger.post(engine.url + "/v1/chat/completions", json=body)).status_code == 200
        assert (await _ask(gateway, await gateway.open())).status_code == 200
        with capture_logs() as logs:  # nothing but these two compare
            ledger = await _ledger(gateway)
            again = await _ledger(gateway)
    assert (ledger["captured"], ledger["engine"], ledger["difference"], ledger["foreign"]) == (3, 6, 3, 3)
    assert ledger["closes"] is again["closes"] is False
    (said,) = [entry for entry in logs if entry["event"] == "worker_ledger_open"]
    assert (said["log_level"], "3 tokens more than the 3" in said["detail"]) == ("warning", True)


async def test_tokens_that_the_engine_never_counted_are_seen(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """An answer from somewhere else, or evidence taken twice."""
    engine.script(Reply(raw=b'{"choices": [{"token_ids": [1, 2], "finish_reason": "stop"}], "usage": null}'))
    assert (await _ask(gateway, await gateway.open(), max_tokens=2)).status_code == 200
    ledger = await _ledger(gateway)
    assert (ledger["difference"], ledger["uncounted"], ledger["closes"]) == (-2, 2, False)


async def test_an_engine_without_the_counter_has_no_ledger(engine: ScriptedEngine) -> None:
    """Not one of zeros."""
    engine.counts = False
    async with running_gateway() as gateway:
        (state,) = await gateway.add(engine)
        assert state["healthy"] is True and state["ledger"] is None
        assert (await _ask(gateway, await gateway.open())).status_code == 200
        assert await _ledgers(gateway) == [None]
        engine.counts = True
        assert (await _ledger(gateway))["captured"] == 0, "begins with the first reading"


async def test_an_engine_started_anew_is_counted_anew(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    """Seen by its lower count, or by when it began where it has counted past the old number already."""
    for sampled in (0, 500):
        assert (await _ask(gateway, await gateway.open())).status_code == 200
        engine.sampled = sampled
        engine.began += 10
        since = (await _ledger(gateway))["since"]
        assert (await _ask(gateway, await gateway.open())).status_code == 200
        ledger = await _ledger(gateway)
        assert (ledger["captured"], ledger["difference"], ledger["closes"]) == (3, 0, True)
        assert ledger["since"] == since


async def test_the_two_are_compared_by_themselves_and_at_a_fence_but_never_in_flight(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    hold = asyncio.Event()
    engine.script(Reply(), Reply(hold=hold))
    ticket = await gateway.open()
    assert (await _ask(gateway, ticket)).status_code == 200

    async def compared() -> bool:
        return bool((await _ledger(gateway, ""))["engine"] == 3)

    await eventually(compared, "compared by the health watch")
    slow = _ask(gateway, ticket)
    await eventually(lambda: engine.on_hold, "a call in flight")
    engine.sampled += 100
    assert (await _ledger(gateway))["engine"] == 3, "a call is there: not compared"
    engine.sampled -= 100
    hold.set()
    fenced = (await gateway.http.post("/v1/pools/default/fence", json={})).json()
    assert (await slow).status_code == 200
    assert fenced["workers"][0]["ledger"]["engine"] == fenced["workers"][0]["ledger"]["captured"] == 6


METRICS = [
    (b'vllm:generation_tokens_total{engine="0",model_name="m"} 10585.0\n', (10585, None, False)),
    (b'vllm:generation_tokens_total{engine="0",model_name="a}\\"b"} 1.5e+07\n', (15_000_000, None, False)),
    (
        b'vllm:generation_tokens_total{engine="0"} 1.0\nvllm:generation_tokens_total{engine="1"} 2.0\n'
        b'vllm:generation_tokens_created{engine="0"} 1.79e+09\nvllm:num_requests_waiting{engine="1"} 1.0\n',
        (3, 1.79e9, True),
    ),
    (b"vllm:generation_tokens_total 4.0 1700000000\n", (4, None, False)),
    (b"vllm:generation_tokens_total_more 4.0\nvllm:request_generation_tokens_sum 7.0\n", None),
    (b'vllm:generation_tokens_total{engine="0"} NaN\n', None),
    (b'vllm:generation_tokens_total{engine="0"} +Inf\n', None),
    (b"", None),
]


@pytest.mark.parametrize(("text", "found"), METRICS)
def test_the_counter_is_read_or_is_not_there(text: bytes, found: tuple[int, float | None, bool] | None) -> None:
    assert read_count(text) == (None if found is None else EngineCount(*found))


@pytest.mark.parametrize(
    ("added", "engine", "expected"),
    [
        ([(5, 0)], 5, {"closes": True, "cut_off": 0, "foreign": 0, "uncounted": 0}),
        ([(5, 10)], 12, {"closes": True, "cut_off": 7, "foreign": 0, "uncounted": 0}),
        ([(5, 10)], 17, {"closes": False, "cut_off": 10, "foreign": 2, "uncounted": 0}),
        ([(5, 10), (1, None)], 900, {"closes": True, "cut_off": 894, "foreign": 0, "uncounted": 0}),
        ([(5, 10)], 4, {"closes": False, "cut_off": 0, "foreign": 0, "uncounted": 1}),
        ([(5, None)], 4, {"closes": False, "cut_off": 0, "foreign": 0, "uncounted": 1}),
    ],
)
def test_an_account_adds_up(added: list[tuple[int, int | None]], engine: int, expected: dict[str, Any]) -> None:
    account = EngineAccount(EngineCount(100, 1.0, False), now=0.0)
    for tokens, besides in added:
        account.add(tokens, besides=besides)
    problem = account.compare(EngineCount(100 + engine, 1.0, False), now=1.0)
    state = account.state()
    assert state.model_dump(include=set(expected)) == expected
    assert (problem is None) is state.closes
    assert state.engine == state.captured + state.cut_off + state.foreign - state.uncounted
    account.add(3, besides=0)
    assert account.state().difference == state.difference, "as of the comparison"
