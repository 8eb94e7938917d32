"""Who may do what at the dispatcher: callers with its key everything, an agent's shim its reports, others nothing."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from rollway_dispatcher.settings import DispatcherSettings
from rollway_driver.client import AsyncDispatcherClient
from rollway_kit.keys import KeyRing
from rollway_wire.ids import new_session_id
from tests.dispatcher.harness import serving

KEY = "the callers' key of some length"
OLD = "the key that is being replaced"
CALLS = [
    ("GET", "/v1/batches"), ("POST", "/v1/batches"), ("GET", "/v1/batches/x"), ("GET", "/v1/batches/x/results"),
    ("POST", "/v1/batches/x/cancel"), ("GET", "/openapi.json"), ("GET", "/docs"),
]  # fmt: skip


async def test_without_its_key_nothing_is_told_and_nothing_taken(
    settings: DispatcherSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's report key is no caller's key either."""
    protected = DispatcherSettings(**{**settings.model_dump(), "api_key": f"{KEY},another key of some length"})
    async with serving(protected) as api:
        with closing(sqlite3.connect(protected.state_path)) as state:
            ((secret,),) = state.execute("SELECT value FROM meta WHERE key = 'secret'")
        session_id = new_session_id()
        reporting = KeyRing([bytes.fromhex(secret)]).issue("report", session_id, time.time() + 60)
        for method, path in CALLS:
            for headers in ({}, {"authorization": f"Bearer {reporting}"}, {"authorization": f"Basic {KEY}"}):
                answer = await api.http.request(method, path, headers=headers)
                assert answer.status_code == 401, (path, headers, answer.text)
                assert reporting not in answer.text
        assert (await api.http.get("/health")).status_code == 200
        report = {"session_id": session_id, "event": "heartbeat"}

        async def said(key: str) -> httpx.Response:
            return await api.http.post("/v1/reports", json=report, headers={"authorization": f"Bearer {key}"})

        assert (await said(reporting)).status_code == 204
        ring, other = KeyRing([bytes.fromhex(secret)]), KeyRing([b"a gateway's own secret"])
        for key in (
            KEY, ring.issue("report", new_session_id(), time.time() + 60),
            ring.issue("report", session_id, time.time() - 1),
            ring.issue("sample", session_id, time.time() + 60), other.issue("report", session_id, time.time() + 60),
        ):  # fmt: skip
            assert (await said(key)).status_code == 401
        async with AsyncDispatcherClient(str(api.http.base_url), api_key="another key of some length") as client:
            assert await client.batches() == []
        monkeypatch.setenv("ROLLWAY_DISPATCHER_API_KEY", f"{KEY},another")
        async with AsyncDispatcherClient(str(api.http.base_url)) as client:
            assert await client.batches() == []


async def test_every_route_asks_for_the_key_before_anything_else_and_says_so_in_its_description(
    settings: DispatcherSettings,
) -> None:
    async with serving(settings.model_copy(update={"api_key": SecretStr(f"{KEY},{OLD}")})) as api:
        spec = (await api.http.get("/openapi.json", headers={"authorization": f"Bearer {OLD}"})).json()
        assert spec["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
        for path, operations in spec["paths"].items():
            for method, operation in operations.items():
                where = path.format(batch_id="b", group_id="g", index=0)
                answer = await api.http.request(method, where, content=b"{")
                locked = path not in ("/health", "/v1/reports")
                assert (operation.get("security") == [{"apiKey": []}]) == locked
                assert (answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer") == locked
                assert not locked or "401" in operation["responses"]
        for wrong in ("Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY},{OLD}"):
            assert (await api.http.get("/v1/batches", headers={"authorization": wrong})).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "dispatcher"])
def test_it_refuses_to_be_public_without_a_key(host: str) -> None:
    with pytest.raises(ValidationError, match="ROLLWAY_DISPATCHER_API_KEY"):
        DispatcherSettings(host=host)
    assert DispatcherSettings(host=host, api_key=KEY).api_keys == [KEY.encode()]
