"""The own API: tickets, sampling parameters, trajectories, sealing, forgetting; and its errors as problems."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from rollway_wire.codec import MEDIA_TYPE, load_packed, load_trajectory, trajectory_tree
from rollway_wire.gateway import SessionTicket
from tests.gateway.conftest import RunningGateway, running_gateway
from tests.gateway.under_way import under_way
from tests.kit.scripted_engine import Reply, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]
SID = "0b1c2d3e-0000-4000-8000-000000000001"


async def _ask(gateway: RunningGateway, ticket: dict[str, Any], **body: Any) -> httpx.Response:
    return await gateway.http.post(
        ticket["base_url"] + "/chat/completions", json={"model": "m", "messages": HI, **body}
    )


async def test_a_ticket_is_the_same_for_the_same_session(gateway: RunningGateway) -> None:
    spec = {"session_id": SID, "sampling_params": {"temperature": 1}, "metadata": {"k": 1}}
    answers = [await gateway.http.post("/v1/sessions", json=spec) for _ in range(2)]
    assert [a.status_code for a in answers] == [201, 200]
    first, again = (SessionTicket.model_validate(a.json()) for a in answers)
    assert first == again
    assert first.base_url == f"{gateway.url}/sessions/{SID}/v1"
    other = await gateway.http.post("/v1/sessions", json={**spec, "metadata": {}})
    assert (other.status_code, other.headers["content-type"]) == (409, "application/problem+json")


async def test_the_public_url_goes_into_tickets() -> None:
    async with running_gateway(public_url="https://gw.example/base/") as gateway:
        ticket = await gateway.open(session_id="a b/c")
        assert ticket["base_url"] == "https://gw.example/base/sessions/a%20b/c/v1"


async def test_sampling_parameters_override_the_agents(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open(sampling_params={"temperature": 0.7, "max_tokens": 5})
    await _ask(gateway, ticket, temperature=0.0, max_completion_tokens=99, top_p=0.5)
    sent = engine.requests[0][1]
    assert (sent["temperature"], sent["max_tokens"], sent["top_p"]) == (0.7, 5, 0.5)
    assert "max_completion_tokens" not in sent
    made = await gateway.trajectory(ticket["session_id"])
    assert made.metadata["sampling_params"] == {"temperature": 0.7, "max_tokens": 5}


async def test_a_trajectory_comes_as_json_and_packed(gateway: RunningGateway) -> None:
    ticket = await gateway.open(metadata={"group": "g"})
    await _ask(gateway, ticket)
    url = f"/v1/sessions/{ticket['session_id']}/trajectory"
    plain = await gateway.http.get(url)
    packed = await gateway.http.get(url, headers={"accept": MEDIA_TYPE})
    assert (plain.headers["content-type"], packed.headers["content-type"]) == ("application/json", MEDIA_TYPE)
    made = load_trajectory(load_packed(packed.content))
    assert trajectory_tree(made) == trajectory_tree(load_trajectory(plain.json()))
    assert made.metadata["group"] == "g"


async def test_sealing_is_final_and_idempotent(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open()
    await _ask(gateway, ticket)
    one, two = await asyncio.gather(*(gateway.seal(ticket["session_id"]) for _ in range(2)))
    assert trajectory_tree(one) == trajectory_tree(two) == trajectory_tree(await gateway.seal(ticket["session_id"]))
    refused = await _ask(gateway, ticket)
    assert (refused.status_code, refused.json()["error"]["type"]) == (410, "GoneError")
    assert len(engine.requests) == 1
    view = (await gateway.http.get(f"/v1/sessions/{ticket['session_id']}")).json()
    assert (view["state"], view["turns"], view["sampled_tokens"]) == ("sealed", 1, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_sealing_cancels_calls_in_flight(gateway: RunningGateway, engine: ScriptedEngine, stream: bool) -> None:
    ticket = await gateway.open()
    await _ask(gateway, ticket)
    engine.script(Reply("abc", hold=asyncio.Event()))
    slow = await under_way(gateway, engine, ticket, {"messages": HI, "stream": stream})
    so_far = await gateway.trajectory(ticket["session_id"])
    assert so_far.incomplete == "1 calls are in flight"
    made = await gateway.seal(ticket["session_id"])
    assert [t.incomplete for t in made.turns] == [None, "the session was sealed"]
    assert made.incomplete is None
    answer = await slow
    assert answer.status_code == (200 if stream else 410)
    assert "the session was sealed" in answer.text


async def test_parallel_calls_of_one_session_are_all_recorded(gateway: RunningGateway) -> None:
    ticket = await gateway.open()
    answers = await asyncio.gather(*(_ask(gateway, ticket, stream=k % 2 == 0) for k in range(12)))
    assert {a.status_code for a in answers} == {200}
    made = await gateway.seal(ticket["session_id"])
    assert sorted(t.index for t in made.turns) == list(range(12))
    assert made.ledger.trained == made.ledger.sampled == 36
    assert len(made.sequences) == 12


async def test_a_forgotten_session_stays_gone(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    ticket = await gateway.open(session_id=SID)
    assert (await gateway.http.delete(f"/v1/sessions/{SID}")).status_code == 204
    assert (await gateway.http.get(f"/v1/sessions/{SID}")).status_code == 404
    refused = await _ask(gateway, ticket)
    assert refused.status_code == 410, "a late call must not open it anew"
    await gateway.open(session_id=SID)
    assert (await _ask(gateway, ticket)).status_code == 200


async def test_an_unknown_session_on_an_agent_route(engine: ScriptedEngine) -> None:
    """It is opened in the pool `default`, unless the setting says no."""
    async with running_gateway() as gateway:
        await gateway.add(engine)
        assert (await _ask(gateway, {"base_url": "/sessions/new/one/v1"})).status_code == 200
        assert (await gateway.http.get("/v1/sessions/new/one")).json()["pool"] == "default"
    async with running_gateway(implicit_sessions=False) as gateway:
        refused = await _ask(gateway, {"base_url": "/sessions/new/one/v1"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (404, "NotFoundError")


async def test_a_key_that_no_ticket_gave_opens_nothing(gateway: RunningGateway) -> None:
    for key in ("EMPTY", "rw-", "rw-abc.def", "rw-YQ.00000000000000000000000000000000", "ключ"):
        headers = {"authorization": f"Bearer {key}".encode()}
        answer = await gateway.http.post("/v1/chat/completions", json={"messages": HI}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "AuthenticationError"), key


BAD: list[tuple[str, str, dict[str, Any] | None, int]] = [
    ("GET", "/v1/sessions/none", None, 404),
    ("GET", "/v1/sessions/none/trajectory", None, 404),
    ("POST", "/v1/sessions/none/seal", None, 404),
    ("DELETE", "/v1/sessions/none", None, 404),
    ("GET", "/v1/pools/none", None, 404),
    ("GET", "/v1/pools/-bad-", None, 422),
    ("POST", "/v1/pools/none/fence", {}, 404),
    ("DELETE", "/v1/pools/none/workers/w", None, 404),
    ("POST", "/v1/sessions", {"pool": "none"}, 404),
    ("POST", "/v1/sessions", {"unknown": 1}, 422),
    ("POST", "/v1/sessions", {"session_id": 7}, 422),
    ("POST", "/v1/sessions", {"session_id": "a/v1/b"}, 400),
    ("POST", "/v1/sessions", {"session_id": "/a"}, 400),
    ("POST", "/v1/sessions", {"session_id": "x" * 513}, 400),
    ("POST", "/v1/sessions", {"session_id": "a\nb"}, 400),
    ("POST", "/v1/sessions", {"sampling_params": {"stream": True}}, 400),
    ("POST", "/v1/pools/default/workers", {}, 422),
    ("POST", "/v1/pools/default/workers", {"url": "file:///etc"}, 400),
    ("POST", "/v1/pools/default/workers", {"url": "http://u:p@h"}, 400),
    ("POST", "/v1/pools/default/workers", {"url": "http://h", "weight": 0}, 422),
    ("POST", "/v1/pools/default/open", {"policy_version": "new"}, 422),
    ("POST", "/v1/pools/default/fence", {"drain_timeout_s": -1}, 422),
    ("PUT", "/v1/pools/default", {}, 405),
    ("GET", "/nope", None, 404),
]


async def test_bad_input_is_a_problem(gateway: RunningGateway) -> None:
    for method, path, body, status in BAD:
        answer = await gateway.http.request(method, path, json=body)
        what = f"{method} {path} {body}: {answer.text}"
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), what
        assert answer.json().keys() >= {"type", "title", "status", "detail", "instance"}, what


async def test_bodies_that_are_not_json_or_too_large_are_problems(gateway: RunningGateway) -> None:
    headers = {"content-type": "application/json"}
    for content, status in ((b"{", 422), (b'{"metadata": {"x": "' + b"y" * 5_000_000 + b'"}}', 413)):
        answer = await gateway.http.post("/v1/sessions", content=content, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
