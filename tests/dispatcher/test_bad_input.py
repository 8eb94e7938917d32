"""Bad input: a clear problem+json of the right status for each, and nothing kept of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.ids import new_session_id
from tests.dispatcher.harness import Api, serving

Make = Callable[..., dict[str, Any]]


@pytest.fixture
async def api(settings: DispatcherSettings) -> AsyncIterator[Api]:
    async with serving(settings.model_copy(update={"max_body_bytes": 20_000})) as made:
        yield made


def assert_problem(answer: Any, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert words in problem["detail"], problem


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"gruops": []}, "gruops"),
    ({"groups": None}, "groups"),
    ({"groups": []}, "groups"),
    ({"groups": [{"payload": {}}]}, "group_id"),
    ({"groups": [{"group_id": "a", "payload": {}, "n": 0}]}, "n"),
    ({"groups": [{"group_id": "a/b", "payload": {}}]}, "group_id"),
    ({"groups": [{"group_id": "a", "payload": {"_rollout": {}}}]}, "_rollout"),
    ({"groups": [{"group_id": "a", "payload": {}}, {"group_id": "a", "payload": {}}]}, "unique"),
    ({"groups": [{"group_id": "a", "payload": [1]}]}, "payload"),
    ({"runtime": {"kind": "lambda"}}, "runtime"),
    ({"runtime": {"kind": "agentcore", "agent_runtime_arn": "arn:aws:s3:::b"}}, "agent_runtime_arn"),
    ({"runtime": {"kind": "http", "urls": []}}, "urls"),
    ({"limits": {"rollout_timeout_s": "soon"}}, "rollout_timeout_s"),
    ({"limits": {"max_attempts": 11}}, "max_attempts"),
    ({"experiment_id": "a/b"}, "experiment_id"),
    ({"rollout": {"exp_id": "mine"}}, "exp_id"),
    ({"rollout": {"base_url": "http://x"}}, "base_url"),
    ({"capture": {"pool": "no pool"}}, "pool"),
]


async def test_a_wrong_field_is_422_and_named(api: Api, batch: Make) -> None:
    for change, words in WRONG_FIELDS:
        assert_problem(await api.http.post("/v1/batches", json=batch([{"reward": 1}]) | change), 422, words)
    assert (await api.http.get("/v1/batches")).json() == []


async def test_what_is_not_json_is_400_and_json_that_is_no_object_422(api: Api) -> None:
    for raw in (b"", b"{", b"\xff\xfe", b'{"groups": NaN}', b'{"a": "\\ud800"}', b"[" * 5000):
        assert_problem(await api.http.post("/v1/batches", content=raw), 400, "not JSON")
    for raw in (b"[]", b"null", b"17", b'"x"'):
        assert_problem(await api.http.post("/v1/batches", content=raw), 422, "body")


async def test_an_oversized_body_is_413_by_its_header_and_while_it_arrives(api: Api) -> None:
    assert_problem(await api.http.post("/v1/batches", content=b" " * 20_001), 413, "20000")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    assert_problem(await api.http.post("/v1/batches", content=chunks()), 413, "20000")


async def test_an_unknown_batch_is_404(api: Api) -> None:
    for method, path in (("GET", ""), ("GET", "/rollouts"), ("GET", "/results"), ("POST", "/cancel")):
        assert_problem(await api.http.request(method, f"/v1/batches/bnone{path}"), 404, "bnone")


BAD_QUERIES = [
    ("cursor=-1", "cursor"),
    ("cursor=x", "cursor"),
    ("cursor=99", "99"),
    ("cursor=99999999999999999999", "cursor"),
    ("limit=0", "limit"),
    ("limit=1001", "limit"),
    ("wait_s=61", "wait_s"),
    ("wait_s=nan", "wait_s"),
]


async def test_a_bad_cursor_limit_or_wait_is_422(api: Api, batch: Make) -> None:
    made = await api.submit(batch([{"act": "hang"}]))
    for query, words in BAD_QUERIES:
        assert_problem(await api.http.get(f"/v1/batches/{made['batch_id']}/results?{query}"), 422, words)


async def test_routes_and_methods_that_are_not_there_are_problems_too(api: Api) -> None:
    assert_problem(await api.http.get("/v1/nothing"), 404, "Not Found")
    assert_problem(await api.http.delete("/v1/batches"), 405, "Not Allowed")


async def test_an_idempotency_key_that_is_empty_or_endless_is_422(api: Api, batch: Make) -> None:
    for key in ("", "k" * 256):
        answer = await api.http.post("/v1/batches", json=batch([{}]), headers={"idempotency-key": key})
        assert_problem(answer, 422, "idempotency-key")


async def test_a_report_needs_its_own_sessions_key(api: Api, batch: Make) -> None:
    report = {"session_id": new_session_id(), "event": "done"}
    assert_problem(await api.http.post("/v1/reports", json=report), 401, "Bearer")
    wrong = {"authorization": "Bearer wrong"}
    assert_problem(await api.http.post("/v1/reports", json=report, headers=wrong), 401, "refused")
    umlaut = {"authorization": "Bearer schlüssel".encode()}
    assert_problem(await api.http.post("/v1/reports", json=report, headers=umlaut), 401, "refused")
    bad = await api.http.post("/v1/reports", json=report | {"event": "exploded"}, headers=wrong)
    assert_problem(bad, 422, "event")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"allow_process_runtime": False}, 403, "ROLLWAY_DISPATCHER_ALLOW_PROCESS_RUNTIME"),
        ({"gateway_url": None}, 422, "ROLLWAY_DISPATCHER_GATEWAY_URL"),
        ({"s3_bucket": None}, 422, "ROLLWAY_DISPATCHER_S3_BUCKET"),
        ({"s3_bucket": "no-such-bucket"}, 503, "no-such-bucket"),
        ({"gateway_url": "http://127.0.0.1:1"}, 503, "gateway"),
    ],
)
async def test_what_the_dispatcher_lacks_is_said_at_submit(
    settings: DispatcherSettings, batch: Make, change: dict[str, Any], status: int, words: str
) -> None:
    async with serving(settings.model_copy(update=change)) as api:
        assert_problem(await api.http.post("/v1/batches", json=batch([{"reward": 1}])), status, words)
        assert (await api.http.get("/v1/batches")).json() == []
