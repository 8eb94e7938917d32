"""rllm-model-gateway's own clients against this gateway, and what its main branch adds to the published client."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from rllm_model_gateway import AsyncGatewayClient, GatewayClient
from rllm_model_gateway.models import TraceRecord

from tests.gateway.conftest import RunningGateway, running_gateway
from tests.kit.scripted_engine import EOS, Reply, ScriptedEngine, chat_ids, text_ids

HI: list[Any] = [{"role": "user", "content": "hi"}]
SID = "harbor/hello-world:0"


async def _ask(gateway: RunningGateway, url: str, **body: Any) -> httpx.Response:
    answer = await gateway.http.post(f"{url}/chat/completions", json={"model": "m", "messages": HI, **body})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture
async def empty() -> Any:
    async with running_gateway() as gateway:
        yield gateway


async def test_the_async_client_goes_its_whole_way(empty: RunningGateway, engine: ScriptedEngine) -> None:
    async with AsyncGatewayClient(empty.url) as client:
        assert (await client.health())["status"] == "ok"
        worker_id = await client.add_worker(url=engine.url, weight=2)
        (worker,) = await client.list_workers()
        assert (worker.worker_id, worker.url, worker.api_path, worker.weight) == (worker_id, engine.url, "/v1", 2)
        assert (worker.healthy, worker.model_name, worker.active_requests) == (True, engine.model, 0)
        assert await client.create_session(session_id=SID, metadata={"task": "t"}) == SID
        engine.script(Reply("yes"), Reply("no"))
        await _ask(empty, client.get_session_url(SID))
        await _ask(empty, client.get_session_url(SID), stream=True)
        assert await client.flush()
        info = await client.get_session_info(SID)
        assert (info["session_id"], info["trace_count"], info["metadata"]) == (SID, 2, {"task": "t"})
        one, two = await client.get_session_traces(SID)
        _check(one, "yes")
        _check(two, "no")
        assert one.raw_response is not None
        assert two.raw_response is None
        assert (await client.get_trace(one.trace_id)) == one
        assert [s["session_id"] for s in await client.list_sessions()] == [SID]
        assert await client.delete_session(SID) == 2
        assert await client.get_session_traces(SID) == []
        await client.remove_worker(worker_id)
        assert await client.list_workers() == []


def _check(trace: TraceRecord, text: str) -> None:
    assert trace.session_id == SID
    assert trace.messages == HI
    assert trace.response_message["content"] == text
    assert trace.prompt_token_ids == chat_ids(HI)
    assert trace.completion_token_ids == [*text_ids(text), EOS]
    assert trace.logprobs is not None
    assert len(trace.logprobs) == len(trace.completion_token_ids)
    assert trace.finish_reason == "stop"
    assert trace.token_counts == {"prompt": 20, "completion": len(text) + 1}
    assert trace.latency_ms > 0
    assert trace.raw_request is not None
    assert trace.metadata == {}


def _sync_way(url: str, engine_url: str) -> tuple[str, int]:
    with GatewayClient(url) as client:
        client.add_worker(url=f"{engine_url}/v1", model_name="scripted-model")
        sid = client.create_session()
        answer = httpx.post(
            client.get_session_url(sid) + "/chat/completions", json={"messages": HI, "model": "m"}, timeout=60
        )
        assert answer.status_code == 200
        assert client.flush()
        (trace,) = client.get_session_traces(sid)
        assert client.get_trace(trace.trace_id).completion_token_ids == trace.completion_token_ids
        assert client.list_sessions(limit=1)[0]["session_id"] == sid
        return sid, client.delete_session(sid)


async def test_the_sync_client_goes_its_whole_way(empty: RunningGateway, engine: ScriptedEngine) -> None:
    sid, deleted = await asyncio.to_thread(_sync_way, empty.url, engine.url)
    assert len(sid) == 36
    assert deleted == 1


async def test_weight_versions_stamp_traces(empty: RunningGateway, engine: ScriptedEngine) -> None:
    await empty.add(engine)
    http = empty.http
    assert (await http.get("/admin/weight_version")).json() == {"weight_version": None}
    await _ask(empty, "/sessions/s/v1")
    assert (await http.post("/admin/weight_version", json={"weight_version": 5})).json() == {"weight_version": 5}
    await _ask(empty, "/sessions/s/v1")
    assert [t["weight_version"] for t in (await http.get("/sessions/s/traces")).json()] == [None, 5]
    for bad in ({}, {"weight_version": "x"}):
        refused = await http.post("/admin/weight_version", json=bad)
        assert (refused.status_code, list(refused.json())) == (400, ["error"])


async def test_sessions_queries_and_batches(empty: RunningGateway, engine: ScriptedEngine) -> None:
    await empty.add(engine)
    http = empty.http
    made = await http.post("/sessions", json={"session_id": "a/b", "sampling_params": {"temperature": 0.3}})
    assert made.json() == {"session_id": "a/b", "url": "/sessions/a/b/v1"}
    for sid in ("a/b", "a/b", "c"):
        await _ask(empty, f"/sessions/{sid}/v1")
    assert engine.requests[0][1]["temperature"] == 0.3
    found = (await http.post("/traces/query", json={"session_ids": ["a/b", "c", "none"]})).json()
    assert [t["session_id"] for t in found] == ["a/b", "a/b", "c"]
    limited = (await http.post("/traces/query", json={"session_ids": ["a/b"], "limit": 1})).json()
    assert len(limited) == 1
    assert (await http.get("/sessions/a/b/traces", params={"since": found[1]["timestamp"]})).json() == [found[1]]
    assert [s["session_id"] for s in (await http.get("/sessions")).json()] == ["c", "a/b"]
    gone = await http.post("/sessions/batch_delete", json={"session_ids": ["a/b", "c", "none"]})
    assert gone.json() == {"deleted": 3}
    assert (await http.get("/sessions")).json() == []


async def test_not_found_and_bad_bodies_have_rllms_shape(empty: RunningGateway) -> None:
    http = empty.http
    for path in ("/sessions/none", "/traces/none"):
        answer = await http.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert (await http.delete("/admin/workers/none")).status_code == 404
    assert (await http.delete("/sessions/none")).json() == {"deleted": 0}
    assert (await http.post("/admin/workers", content=b"{")).json() == {"error": "url is required"}
    for bad in ({"url": "ftp://x"}, {"url": "http://x", "weight": "heavy"}, {"url": 7}):
        answer = await http.post("/admin/workers", json=bad)
        assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert (await http.post("/sessions", json={"session_id": "a/v1/b"})).status_code == 400
    assert (await http.post("/sessions", content=b"")).status_code == 200
    assert (await http.post("/admin/reload")).json() == {"status": "ok"}
    assert (await http.get("/health/workers")).json() == {"workers": [], "healthy": 0, "total": 0}


async def test_a_trace_without_whole_evidence_holds_nothing_to_train_on(
    empty: RunningGateway, engine: ScriptedEngine
) -> None:
    await empty.add(engine)
    engine.script(Reply("x", drop=frozenset({"logprobs"})))
    await _ask(empty, "/sessions/s/v1")
    (trace,) = (await empty.http.get("/sessions/s/traces")).json()
    assert (trace["completion_token_ids"], trace["logprobs"]) == ([], None)
    assert trace["metadata"] == {"incomplete": "2 token ids but 0 log-probs"}
    assert trace["response_message"]["content"] == "x"


async def test_kept_messages_are_bounded_and_can_be_switched_off(engine: ScriptedEngine) -> None:
    async with running_gateway(kept_messages_mib=0.002) as gateway:
        await gateway.add(engine)
        for _ in range(4):
            await _ask(gateway, "/sessions/s/v1")
        kept = [bool(t["messages"]) for t in (await gateway.http.get("/sessions/s/traces")).json()]
        assert not kept[0]
        assert kept[-1]
    async with running_gateway(keep_messages=False) as gateway:
        await gateway.add(engine)
        await _ask(gateway, "/sessions/s/v1")
        (trace,) = (await gateway.http.get("/sessions/s/traces")).json()
        assert (trace["messages"], trace["response_message"]) == ([], {})
        assert trace["completion_token_ids"]
