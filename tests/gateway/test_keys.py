"""Signed keys and two listeners: an agent samples as its own session, while it lives, and does nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from rollway_gateway.__main__ import main
from rollway_gateway.settings import GatewaySettings
from rollway_kit.keys import KeyRefused, KeyRing, scrub
from rollway_local.listening import listening_url
from tests.gateway.conftest import running_gateway
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import Reply, ScriptedEngine
from tests.kit.services import Service, Services

HI: list[Any] = [{"role": "user", "content": "hi"}]
SECRET = "a signing secret of thirty-two c"
ADMIN = "an admin key of twenty-four"
BEARER = {"authorization": f"Bearer {ADMIN}"}
RING = KeyRing([SECRET.encode()])


# -- the ring


def test_a_key_is_good_for_its_session_its_scope_and_its_time() -> None:
    key = RING.issue("sample", "team/tásk:0", 1000)
    assert RING.read(key, "sample", now=999) == "team/tásk:0"
    assert RING.issue("sample", "team/tásk:0", 1000) == key
    with pytest.raises(KeyRefused, match="to report"):
        RING.read(key, "report", now=999)
    with pytest.raises(KeyRefused, match="expired"):
        RING.read(key, "sample", now=1000)
    with pytest.raises(KeyRefused, match="not a key of this service"):
        KeyRing([b"another secret entirely"]).read(key, "sample", now=999)


def test_no_single_changed_character_leaves_a_key_good() -> None:
    key = RING.issue("sample", "session-0123456789", 2**33)
    for at in range(len("rw1-"), len(key)):
        for other in "AQgw_-":
            forged = key[:at] + other + key[at + 1 :]
            if forged == key:
                continue
            try:
                read = RING.read(forged, "sample", now=0)
            except KeyRefused as e:
                assert forged not in str(e)
                continue
            # The last character may hold bits that no octet uses.
            assert (at, read) == (len(key) - 1, "session-0123456789")


@pytest.mark.parametrize("key", ["", "rw1-", "EMPTY", "rw1-AAAA", "rw1-" + "A" * 200, "rw1-é", "rw1-a=b", "rw1-a\nb"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(KeyRefused):
        RING.read(key, "sample")


def test_a_secret_is_replaced_while_keys_of_the_old_one_live() -> None:
    old, new = KeyRing([b"the old secret 1234"]), KeyRing([b"the new secret 1234"])
    both = KeyRing([b"the new secret 1234", b"the old secret 1234"])
    assert both.read(old.issue("sample", "s", 10), "sample", now=0) == "s"
    assert new.read(both.issue("sample", "s", 10), "sample", now=0) == "s"
    with pytest.raises(KeyRefused):
        new.read(old.issue("sample", "s", 10), "sample", now=0)


def test_keys_are_scrubbed_from_text() -> None:
    key = RING.issue("sample", "s", 10)
    assert scrub(f"GET /sessions/s.{key}/v1/models failed") == "GET /sessions/s.rw1-[redacted]/v1/models failed"


# -- the process


@dataclass
class Protected:
    process: Service
    agents: httpx.AsyncClient
    admin: httpx.AsyncClient
    """With its key."""

    async def ticket(self, **spec: Any) -> dict[str, Any]:
        answer = await self.admin.post("/v1/sessions", json=spec)
        assert answer.status_code == 201, answer.text
        ticket: dict[str, Any] = answer.json()
        return ticket


def protection(**settings: str) -> dict[str, str]:
    given = {
        "PORT": "0", "ADMIN_PORT": "0", "KEY_SECRET": SECRET, "ADMIN_KEY": ADMIN, "LOG_LEVEL": "debug",
        "HEALTH_TIMEOUT_S": "60",
    }  # fmt: skip
    return {f"ROLLWAY_GATEWAY_{k}": v for k, v in {**given, **settings}.items()}


@pytest.fixture
async def protected(services: Services, engine: ScriptedEngine) -> AsyncIterator[Protected]:
    process = await services.start_async("gateway", ["-m", "rollway_gateway"], env=protection())
    admin_url = listening_url(process.logs(), "admin_url")
    async with (
        httpx.AsyncClient(base_url=process.url, timeout=30) as agents,
        httpx.AsyncClient(base_url=admin_url, timeout=30, headers=BEARER) as admin,
    ):
        added = await admin.post("/v1/pools/default/workers", json={"url": engine.url})
        assert added.json()["healthy"], added.text
        yield Protected(process, agents, admin)


async def test_an_agent_that_sends_a_fixed_key_is_known_by_its_base_url(
    protected: Protected, engine: ScriptedEngine
) -> None:
    """As the toolkit's agents do; and the key is in none of the gateway's logs, nor in what the engine was sent."""
    ticket = await protected.ticket(session_id="team/task:0/and-more-of-it")
    assert ticket["base_url"].startswith(str(protected.agents.base_url).rstrip("/") + "/sessions/team/task:0/")
    async with openai.AsyncOpenAI(base_url=ticket["base_url"], api_key="EMPTY", max_retries=0) as client:
        answer = await client.chat.completions.create(model="m", messages=HI)
        assert [m.id async for m in await client.models.list()] == [engine.model]
    assert answer.choices[0].message.content == "ok"
    made = (await protected.admin.get(f"/v1/sessions/{ticket['session_id']}")).json()
    assert (made["turns"], made["incomplete_turns"]) == (1, 0)
    assert "authorization" not in {name.lower() for name in engine.headers[0]}
    told = await protected.admin.get(f"/sessions/x.{ticket['api_key']}/v1/nothing")
    assert told.status_code == 404
    assert ticket["api_key"] not in told.text
    await protected.admin.get(f"/sessions/{ticket['api_key']}")
    refused = await protected.agents.post(f"/sessions/x.{ticket['api_key']}/v1/chat/completions", json={})
    assert refused.status_code == 403
    assert ticket["api_key"] not in refused.text
    assert await asyncio.to_thread(protected.process.stop) == 0  # by then all is logged
    logged = protected.process.logs()
    assert logged.count("rw1-[redacted]") >= 2
    for secret in (ticket["api_key"], ADMIN, SECRET):
        assert secret not in logged


async def test_both_sdks_may_send_the_key_as_their_api_key(protected: Protected, engine: ScriptedEngine) -> None:
    ticket = await protected.ticket()
    base = str(protected.agents.base_url)
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=ticket["api_key"], max_retries=0) as client:
        assert (await client.chat.completions.create(model="m", messages=HI)).choices[0].message.content == "ok"
    async with anthropic.AsyncAnthropic(base_url=base, api_key=ticket["api_key"], max_retries=0) as client:
        said = await client.messages.create(model="m", messages=HI, max_tokens=8)
        assert said.stop_reason == "end_turn"
    plain = f"/sessions/{ticket['session_id']}/v1/models"
    assert (await protected.agents.get(plain, headers={"x-api-key": ticket["api_key"]})).status_code == 200
    assert (await protected.agents.get(plain)).status_code == 401


async def test_a_key_opens_no_other_session_and_no_key_none(protected: Protected, engine: ScriptedEngine) -> None:
    """403 with another session's key, 401 with none, a forged, a report or an expired one; whether or not the session
    exists."""
    mine, theirs = await protected.ticket(), await protected.ticket()
    sid, later = theirs["session_id"], time.time() + 3600
    forged = {
        403: [mine["api_key"], RING.issue("sample", sid + "x", later)],
        401: [
            "EMPTY", ADMIN, RING.issue("report", sid, later), RING.issue("sample", sid, time.time() - 1),
            KeyRing([b"a guessed secret"]).issue("sample", sid, later), mine["api_key"][:-2],
        ],
    }  # fmt: skip
    for status, keys in forged.items():
        for key in keys:
            for target in (sid, "no-such-session"):
                for path, headers in (
                    (f"/sessions/{target}/v1/chat/completions", {"authorization": f"Bearer {key}"}),
                    (f"/sessions/{target}/v1/messages", {"x-api-key": key}),
                    *([(f"/sessions/{target}.{key}/v1/chat/completions", BEARER)] if key.startswith("rw1-") else []),
                ):
                    answer = await protected.agents.post(path, headers=headers, json={"messages": HI})
                    assert answer.status_code == status, (path, headers, answer.text)
                    assert key not in answer.text
    # A key in the path is the only one that counts.
    path = f"/sessions/{sid}.{mine['api_key']}/v1/chat/completions"
    owner = {"authorization": f"Bearer {theirs['api_key']}"}
    assert (await protected.agents.post(path, headers=owner, json={"messages": HI})).status_code == 403
    assert not engine.requests


async def test_sealing_and_forgetting_revoke_a_key(protected: Protected, engine: ScriptedEngine) -> None:
    """A sealed session's key is refused for good (410, which SDKs do not retry), and opens nothing once forgotten."""
    for end in ("seal", "forget", "rllm"):
        ticket = await protected.ticket()
        sid = ticket["session_id"]
        url = ticket["base_url"] + "/chat/completions"
        assert (await protected.agents.post(url, json={"messages": HI})).status_code == 200
        if end == "seal":
            assert (await protected.admin.post(f"/v1/sessions/{sid}/seal")).status_code == 200
        elif end == "forget":
            assert (await protected.admin.delete(f"/v1/sessions/{sid}")).status_code == 204
        else:
            assert (await protected.admin.delete(f"/sessions/{sid}")).status_code == 200
        answer = await protected.agents.post(url, json={"messages": HI})
        assert answer.status_code == (404 if end == "rllm" else 410), answer.text
        assert (await protected.agents.post(url, json={"messages": HI})).status_code == answer.status_code
    assert len(engine.requests) == 3


ADMIN_ROUTES = [
    ("GET", "/v1/pools"), ("POST", "/v1/sessions"), ("GET", "/v1/sessions/{sid}"),
    ("GET", "/v1/sessions/{sid}/trajectory"),
    ("POST", "/v1/sessions/{sid}/seal"), ("DELETE", "/v1/sessions/{sid}"), ("POST", "/v1/pools/default/workers"),
    ("POST", "/v1/pools/default/fence"), ("POST", "/v1/pools/default/open"), ("POST", "/v1/pools/default/pause"),
    ("GET", "/sessions"), ("GET", "/sessions/{sid}"), ("GET", "/sessions/{sid}/traces"), ("DELETE", "/sessions/{sid}"),
    ("POST", "/sessions"), ("POST", "/sessions/batch_delete"), ("GET", "/traces/x"), ("POST", "/traces/query"),
    ("GET", "/admin/workers"), ("POST", "/admin/workers"), ("POST", "/admin/flush"), ("POST", "/admin/weight_version"),
    ("GET", "/health/workers"), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/metrics"),
]  # fmt: skip


@pytest.mark.parametrize("how", ["sample key", "admin key"])
async def test_the_agents_listener_has_no_admin_route_whatever_key_is_sent(protected: Protected, how: str) -> None:
    ticket = await protected.ticket()
    key = ticket["api_key"] if how == "sample key" else ADMIN
    for method, path in ADMIN_ROUTES:
        there = path.format(sid=ticket["session_id"])
        answer = await protected.agents.request(
            method, there, headers={"authorization": f"Bearer {key}", "host": protected.admin.base_url.netloc.decode()}
        )
        assert answer.status_code == 404, (there, answer.text)
    assert (await protected.agents.get("/health")).json() == {"status": "ok"}


async def test_the_admin_listener_wants_its_key_and_serves_no_agent(protected: Protected) -> None:
    ticket = await protected.ticket()
    sid = ticket["session_id"]
    async with httpx.AsyncClient(base_url=protected.admin.base_url, timeout=30) as bare:
        assert (await bare.get("/health")).status_code == 200
        for method, path in ADMIN_ROUTES:
            for headers in (
                {}, {"authorization": f"Bearer {ticket['api_key']}"}, {"authorization": ADMIN},
                {"authorization": f"Basic {ADMIN}"}, {"x-api-key": ADMIN}, {"authorization": f"Bearer {ADMIN}x"},
                {"authorization": "Bearer"},
            ):  # fmt: skip
                answer = await bare.request(method, path.format(sid=sid), headers=headers)
                assert answer.status_code == 401, (path, headers, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
        named = f"/sessions/{sid}/v1/chat/completions"
        assert (await bare.post(named, headers=BEARER, json={"messages": HI})).status_code in (404, 405)
        assert (await bare.get(f"/sessions/{sid}.{ticket['api_key']}/v1/models")).status_code == 401
    assert (await protected.admin.get(f"/v1/sessions/{sid}")).json()["calls"] == 0


async def test_a_call_that_began_before_its_key_expired_ends_as_any_other(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(key_secret=SECRET, key_life_s=3600) as gateway:
        await gateway.add(engine)
        hold = asyncio.Event()
        engine.script(Reply("late", hold=hold))
        ticket = await gateway.open()
        asking = asyncio.create_task(gateway.http.post(ticket["base_url"] + "/chat/completions", json={"messages": HI}))
        await eventually(lambda: engine.active, "a call in flight")
        monkeypatch.setattr("rollway_kit.keys.time", SimpleNamespace(time=lambda: time.time() + 3601))
        refused = await gateway.http.post(ticket["base_url"] + "/chat/completions", json={"messages": HI})
        assert refused.status_code == 401 and "expired" in refused.text
        hold.set()
        assert (await asking).json()["choices"][0]["message"]["content"] == "late"


async def test_the_same_session_again_gets_the_same_ticket(engine: ScriptedEngine) -> None:
    async with running_gateway(key_secret=SECRET) as gateway:
        assert await gateway.open(session_id="s") == await gateway.open(session_id="s")
        rllm = (await gateway.http.post("/sessions", json={"session_id": "r"})).json()
        await gateway.add(engine)
        assert (await gateway.http.get(gateway.url + rllm["url"] + "/models")).status_code == 200


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"HOST": "0.0.0.0"}, ["KEY_SECRET", "ADMIN_KEY", "ADMIN_PORT", "127.0.0.1"]),
        ({"HOST": "::"}, ["KEY_SECRET", "ADMIN_KEY"]),
        ({"HOST": ""}, ["KEY_SECRET"]),
        ({"HOST": "10.1.2.3", "KEY_SECRET": SECRET}, ["ADMIN_KEY", "ADMIN_PORT"]),
        ({"HOST": "gateway", "ADMIN_KEY": ADMIN, "ADMIN_PORT": "1"}, ["KEY_SECRET"]),
        ({"HOST": "0.0.0.0", "KEY_SECRET": SECRET, "ADMIN_KEY": ADMIN}, ["ADMIN_PORT"]),
        ({"ADMIN_HOST": "0.0.0.0", "ADMIN_PORT": "1"}, ["KEY_SECRET", "ADMIN_KEY"]),
        (
            {"HOST": "0.0.0.0", "KEY_SECRET": SECRET, "ADMIN_KEY": ADMIN, "ADMIN_PORT": "1", "REQUIRE_KEYS": "false"},
            ["REQUIRE_KEYS"],
        ),
        ({"REQUIRE_KEYS": "true"}, ["KEY_SECRET"]),
        ({"ADMIN_PORT": "8700"}, ["must differ"]),
        ({"ADMIN_KEY": "short"}, ["ADMIN_KEY"]),
        ({"KEY_SECRET": f"{SECRET},short"}, ["KEY_SECRET"]),
    ],
)
def test_it_refuses_to_start_open_to_others_and_says_what_to_set(
    settings: dict[str, str], named: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"ROLLWAY_GATEWAY_{name}", value)
    with pytest.raises(SystemExit) as stopped:
        main([])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert all(name in said for name in named), said
    assert SECRET not in said
    assert "short" not in said


def test_with_keys_it_may_be_public() -> None:
    made = GatewaySettings(host="0.0.0.0", admin_port=0, key_secret=SECRET, admin_key=ADMIN, admin_host="127.0.0.1")
    assert made.keys_required
    assert SECRET not in repr(made)
