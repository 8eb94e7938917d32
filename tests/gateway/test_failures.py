"""What goes wrong under way: the agent gets an error its SDK reads, and nothing without whole evidence trains."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine, text_ids

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def _ask(gateway: RunningGateway, ticket: dict[str, Any], stream: bool = False, **body: Any) -> httpx.Response:
    return await gateway.http.post(
        ticket["base_url"] + "/chat/completions", json={"model": "m", "messages": HI, "stream": stream, **body}
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reply", "flaw"),
    [
        (Reply(drop=frozenset({"logprobs"})), "3 token ids but 0 log-probs"),
        (Reply(drop=frozenset({"token_ids"})), "0 completion tokens captured, the engine's usage says 3"),
        (Reply(drop=frozenset({"prompt_token_ids"})), "0 prompt tokens captured, the engine's usage says 20"),
        (Reply(drop=frozenset({"usage"})), "the engine reported no usage"),
        (Reply(logprob=-9999.0), "a log-prob is -9999.0: minus infinity, or missing at the engine"),
        (Reply(logprob=0.5), "a log-prob is above 0"),
    ],
)
async def test_a_turn_without_whole_evidence_never_trains(
    gateway: RunningGateway, engine: ScriptedEngine, reply: Reply, flaw: str, stream: bool
) -> None:
    """The agent is served all the same; the session says why it may not train; the ledger closes."""
    ticket = await gateway.open()
    engine.script(Reply("a good one"), reply)
    assert (await _ask(gateway, ticket)).status_code == 200
    answer = await _ask(gateway, ticket, stream)
    assert answer.status_code == 200
    assert "error" not in answer.text
    made = await gateway.seal(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == [None, flaw]
    assert made.incomplete is not None
    assert flaw in made.incomplete
    assert len(made.sequences) == 1
    known = 0 if "usage" in reply.drop and "token_ids" in reply.drop else 3
    assert made.ledger.lost == known
    assert made.ledger.sampled == made.ledger.trained + known


async def test_an_aborted_generation_is_a_retryable_error(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    engine.script(Reply("part", finish_reason="abort"), Reply("whole"))
    async with gateway.openai(ticket, max_retries=1) as client:
        answer = await client.chat.completions.create(model="m", messages=HI)
    assert answer.choices[0].message.content == "whole"
    made = await gateway.seal(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == ["the engine aborted the generation", None]
    assert made.incomplete is None, "the agent never saw the aborted answer"
    assert (made.ledger.lost, made.ledger.trained) == (4, 6)


async def test_an_aborted_stream_ends_with_an_error_event(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    engine.script(Reply("part", finish_reason="abort"))
    async with gateway.openai(ticket) as client:
        with pytest.raises(openai.APIError, match="aborted"):
            async for chunk in await client.chat.completions.create(model="m", messages=HI, stream=True):
                assert chunk.choices[0].finish_reason is None
    (turn,) = (await gateway.settled(ticket["session_id"])).turns
    assert (turn.incomplete, turn.finish_reason) == ("the engine aborted the generation", "abort")


async def test_a_worker_that_dies_in_the_stream_is_a_clear_error(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket = await gateway.open()
    engine.script(Reply("a long answer", die_after=5))
    answer = await _ask(gateway, ticket, stream=True)
    *_, error, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 502
    made = await gateway.settled(ticket["session_id"])
    (turn,) = made.turns
    assert turn.incomplete is not None
    assert turn.completion_token_ids.tolist() == text_ids("a long answer")[: len(turn.completion_token_ids)]
    assert made.ledger.lost == len(turn.completion_token_ids) > 0
    assert made.incomplete is None


async def test_an_engines_error_event_reaches_the_agent(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    engine.script(Reply("half", error={"message": "boom", "type": "InternalServerError", "param": None, "code": 500}))
    answer = await _ask(gateway, ticket, stream=True)
    assert answer.text.endswith("\n\ndata: [DONE]\n\n")
    assert '"boom"' in answer.text
    (turn,) = (await gateway.settled(ticket["session_id"])).turns
    assert turn.incomplete is not None
    assert "boom" in turn.incomplete


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_lost_before_anything_was_delivered_is_tried_elsewhere(
    engine: ScriptedEngine, stream: bool
) -> None:
    async with ScriptedEngine() as other, running_gateway() as gateway:
        await gateway.add(engine, other)
        ticket = await gateway.open()
        engine.script(Reply("from one"))
        await _ask(gateway, ticket)
        engine.script(Reply(die_after=0))
        other.script(Reply("from another"))
        answer = await _ask(gateway, ticket, stream)
        assert answer.status_code == 200, answer.text
        assert len(other.requests) == 1
        made = await gateway.settled(ticket["session_id"])
        assert [t.incomplete for t in made.turns] == [None, None]
        assert made.turns[0].worker != made.turns[1].worker


async def test_without_another_worker_the_same_one_is_tried_once_more_then_502(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    ticket = await gateway.open()
    engine.script(Reply(die_after=0))
    assert (await _ask(gateway, ticket)).status_code == 200
    engine.script(Reply(die_after=0), Reply(die_after=0))
    answer = await _ask(gateway, ticket)
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "BadGatewayError"
    made = await gateway.settled(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == [None]
    assert made.metadata["failed_calls"] == 1
    assert (await _ask(gateway, ticket)).status_code == 200, "a failure or two do not condemn a worker"


async def test_a_worker_that_is_gone_is_502_at_once(engine: ScriptedEngine) -> None:
    async with running_gateway(health_interval_s=3600) as gateway:
        await gateway.add(engine)
        await engine.stop()
        answer = await _ask(gateway, await gateway.open())
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "BadGatewayError")


async def test_without_a_healthy_worker_calls_are_told_when_to_return() -> None:
    async with running_gateway() as gateway:
        ticket = await gateway.open()
        answer = await _ask(gateway, ticket)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["message"] == "pool 'default' has no workers"
        added = await gateway.http.post("/v1/pools/default/workers", json={"url": "http://127.0.0.1:9"})
        assert (added.status_code, added.json()["healthy"]) == (201, False)
        assert "has no healthy worker" in (await _ask(gateway, ticket)).json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_generation(
    gateway: RunningGateway, engine: ScriptedEngine, stream: bool
) -> None:
    ticket = await gateway.open()
    engine.script(Reply("never read to its end", hold=asyncio.Event()))
    asking = asyncio.create_task(_ask(gateway, ticket, stream))
    await eventually(lambda: engine.active, "the call reached the engine")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    made = await gateway.settled(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == ["client disconnected"]
    assert made.incomplete is None
    await eventually(lambda: engine.cancelled == 1 and not engine.active, "the engine saw the disconnect")


async def test_a_worker_that_falls_silent_is_504(engine: ScriptedEngine) -> None:
    async with running_gateway(upstream_inactivity_s=0.3) as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        engine.script(Reply(hold=asyncio.Event()))
        answer = await _ask(gateway, ticket)
        assert (answer.status_code, answer.json()["error"]["type"]) == (504, "GatewayTimeoutError")


@pytest.mark.parametrize("slice_bytes", [1, 7, 1000])
async def test_streams_cut_anywhere_arrive_whole(
    gateway: RunningGateway, engine: ScriptedEngine, slice_bytes: int
) -> None:
    """Also inside a character; comment lines do not disturb the SDK."""
    ticket = await gateway.open()
    engine.script(Reply("né – 👍", slice_bytes=slice_bytes, keep_alive=True))
    async with gateway.openai(ticket) as client:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "né – 👍"
    assert [t.incomplete for t in (await gateway.settled(ticket["session_id"])).turns] == [None]


async def test_events_are_forwarded_as_they_come(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    hold = asyncio.Event()
    engine.script(Reply("abc", hold=hold))
    body = {"model": "m", "messages": HI, "stream": True}
    async with gateway.http.stream("POST", ticket["base_url"] + "/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        first = [await anext(lines) for _ in range(3)]
        assert '"content":"a"' in first[2], "arrived while the engine still holds the rest back"
        hold.set()
        assert [line async for line in lines][-2:] == ["data: [DONE]", ""]


BAD: list[tuple[str, str, bytes, int]] = [
    ("POST", "/sessions/{id}/v1/chat/completions", b"{", 400),
    ("POST", "/sessions/{id}/v1/chat/completions", b"[]", 400),
    ("POST", "/sessions/{id}/v1/chat/completions", b'{"stream": "yes", "messages": []}', 400),
    ("POST", "/sessions/{id}/v1/chat/completions", b'{"x": "' + b"y" * 1_100_000 + b'"}', 413),
    ("POST", "/sessions/{id}/v1/nope", b"{}", 404),
    ("POST", "/sessions/{id}/v1", b"{}", 404),
    ("GET", "/sessions/{id}/v1/chat/completions", b"", 405),
    ("DELETE", "/sessions/{id}/v1/models", b"", 405),
    ("POST", "/v1/chat/completions", b"{}", 401),
    ("POST", "/sessions/a/%2E%2E/b/v1/chat/completions", b"{}", 400),
]


async def test_bad_requests_get_openais_error_body(engine: ScriptedEngine) -> None:
    async with running_gateway(max_body_mib=1) as gateway:
        await gateway.add(engine)
        ticket = await gateway.open()
        for method, path, body, status in BAD:
            url = httpx.URL(gateway.url).copy_with(raw_path=path.replace("{id}", ticket["session_id"]).encode())
            answer = await gateway.http.request(method, url, content=body)
            assert answer.status_code == status, f"{method} {path}: {answer.text}"
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
            assert answer.json()["error"]["code"] == status
        assert engine.requests == []


async def test_a_body_that_is_too_large_without_a_length_is_refused(engine: ScriptedEngine) -> None:
    async with running_gateway(max_body_mib=0.1) as gateway:
        ticket = await gateway.open()

        async def endless() -> Any:
            for _ in range(20):
                yield b"x" * 10_000

        answer = await gateway.http.post(ticket["base_url"] + "/chat/completions", content=endless())
        assert answer.status_code == 413


async def test_a_body_that_stops_arriving_is_refused() -> None:
    async with running_gateway(body_timeout_s=0.2) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /sessions/s/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_engine_errors_pass_through_unchanged(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    error = {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}
    engine.script(Reply(status=400, error=error), Reply(status=503, error=error))
    ticket = await gateway.open()
    for status in (400, 503):
        answer = await _ask(gateway, ticket)
        assert (answer.status_code, answer.json()) == (status, {"error": error})
    made = await gateway.settled(ticket["session_id"])
    assert made.turns == ()
    assert made.metadata["failed_calls"] == 2


async def test_an_answer_that_is_not_json_is_502(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.script(Reply(raw=b"<html>"))
    ticket = await gateway.open()
    answer = await _ask(gateway, ticket)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, 502)
