"""What a hostile agent may try, on real sockets against a protected gateway: each is refused, none is a 500, and the
engine sees nothing of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from rollway_gateway.worker_address import WorkerResolver, check_worker_url
from rollway_kit import http_guard
from rollway_local.listening import listening_url
from tests.gateway.raw_http import head, post, say, trickle
from tests.kit.deadlines import eventually
from tests.kit.scripted_engine import ScriptedEngine
from tests.kit.services import Service, Services

HI: list[Any] = [{"role": "user", "content": "hi"}]
ASK = json.dumps({"messages": HI}).encode()
ADMIN = "an admin key of twenty-four"


@dataclass
class Target:
    process: Service
    engine: ScriptedEngine
    admin: httpx.AsyncClient
    mine: dict[str, Any]
    theirs: dict[str, Any]

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def base(self) -> str:
        """Path of the agent's base URL."""
        path: str = self.mine["base_url"].removeprefix(self.url)
        return path

    @property
    def chat(self) -> str:
        return self.base + "/chat/completions"


IMPATIENT = pytest.mark.parametrize("target", ["1.5"], indirect=True)
"""Where a body is to be given up; elsewhere none may be, however slowly it is read."""


@pytest.fixture
async def target(services: Services, engine: ScriptedEngine, request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    env = {
        "PORT": "0", "ADMIN_PORT": "0", "KEY_SECRET": "a signing secret of thirty-two c", "ADMIN_KEY": ADMIN,
        "MAX_BODY_MIB": "1", "BODY_TIMEOUT_S": getattr(request, "param", "60"), "HEALTH_INTERVAL_S": "0.1",
        "HEALTH_TIMEOUT_S": "60",
    }  # fmt: skip
    process = await services.start_async(
        "gateway", ["-m", "rollway_gateway"], env={f"ROLLWAY_GATEWAY_{k}": v for k, v in env.items()}
    )
    admin_url = listening_url(process.logs(), "admin_url")
    bearer = {"authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(base_url=admin_url, timeout=30, headers=bearer) as admin:
        assert (await admin.post("/v1/pools/default/workers", json={"url": engine.url})).json()["healthy"]
        mine = (await admin.post("/v1/sessions", json={"session_id": "mine"})).json()
        theirs = (await admin.post("/v1/sessions", json={"session_id": "theirs"})).json()
        made = Target(process, engine, admin, mine, theirs)
        yield made
        # Whatever was tried: the gateway still serves, nothing broke, and the other session was not touched.
        assert (await say(made.url, post(made.chat, ASK))).status == 200
        seen = (await admin.get("/v1/sessions/theirs")).json()
        assert (seen["calls"], seen["state"]) == (0, "open")
        assert "Traceback" not in process.logs(), process.logs()


# -- one request that could be read as two


SMUGGLED = b"GET /sessions/theirs/v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ASK), ASK)


TWO_READINGS = [
    [f"content-length: {len(ASK)}", "transfer-encoding: chunked"],
    ["transfer-encoding: chunked", f"content-length: {len(ASK)}"],
    ["transfer-encoding: chunked", "content-length: 0"],
    [f"content-length: {len(ASK)}", "content-length: 0"],
    [f"content-length: {len(ASK)}", f"content-length: {len(ASK)}"],
    [f"content-length: {len(ASK)}, {len(ASK)}"],
    [f"content-length: +{len(ASK)}"],
    [f"content-length: -{len(ASK)}"],
    [f"content-length: 0x{len(ASK):x}"],
    [f"content-length: {len(ASK)} 0"],
    ["content-length: 99999999999999999999999999"],
    ["content-length:"],
    [f"content-length : {len(ASK)}"],
    [" content-length: 5"],
    ["transfer-encoding: chunked", "transfer-encoding: identity"],
    ["transfer-encoding: chunked, identity"],
    ["transfer-encoding: identity, chunked"],
    ["transfer-encoding: gzip, chunked"],
    ["transfer-encoding: xchunked"],
    ["transfer-encoding: \x0bchunked"],
    ["transfer-encoding : chunked"],
    ["transfer-encoding:\r\n chunked"],
    ["x-a: b\r\n\tcontent-length: 3", f"content-length: {len(ASK)}"],
    ["x-a: b\r\n folded", f"content-length: {len(ASK)}"],
    ["x-a: b\nx-b: c", f"content-length: {len(ASK)}"],
    ["x-a: b\rx-b: c", f"content-length: {len(ASK)}"],
    ["x-a: b\x00c", f"content-length: {len(ASK)}"],
    ["x\x00a: b", f"content-length: {len(ASK)}"],
    ["no colon at all", f"content-length: {len(ASK)}"],
    [": no name", f"content-length: {len(ASK)}"],
    ["host: y", f"content-length: {len(ASK)}"],
    ["authorization: Bearer a", "authorization: Bearer b", f"content-length: {len(ASK)}"],
]


async def test_a_request_with_two_readings_is_refused(target: Target) -> None:
    for headers in TWO_READINGS:
        body = CHUNKED if any("chunked" in h for h in headers) else ASK
        answer = await say(target.url, head("POST", target.chat, *headers, last=False) + body + SMUGGLED)
        assert (answer.status, answer.answers) == (400, 1), (headers, answer.text)
    assert not target.engine.requests


BAD_CHUNKS = [
    b"-1\r\nx\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\nx",
    b"5\r\nhelloX\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"g\r\nx\r\n0\r\n\r\n",
    b"\r\n5\r\nhello\r\n0\r\n\r\n",
]


@IMPATIENT
async def test_a_chunk_with_a_bad_size_is_refused(target: Target) -> None:
    """No answer to it, or a refusal; but never a call, and never a second answer."""
    for body in BAD_CHUNKS:
        start = head("POST", target.chat, "transfer-encoding: chunked", last=False)
        answer = await say(target.url, start + body + SMUGGLED)
        assert answer.status in (0, 400, 408), (body, answer.text)
        assert answer.answers <= 1
    assert not target.engine.requests


async def test_trailers_are_no_headers(target: Target) -> None:
    """A key after the body is no key, and an ordinary trailer does no harm."""
    key = target.mine["api_key"].encode()
    bare = "/sessions/mine/v1/chat/completions"
    trailed = CHUNKED[:-2] + b"authorization: Bearer " + key + b"\r\nx-request-id: t\r\n\r\n"
    assert (await say(target.url, head("POST", bare, "transfer-encoding: chunked") + trailed)).status == 401
    assert (await say(target.url, head("POST", target.chat, "transfer-encoding: chunked") + trailed)).status == 200
    assert target.engine.headers[0].get("X-Request-Id", "") != "t"


async def test_pipelined_requests_are_answered_one_by_one(target: Target) -> None:
    """What follows a whole request is a request of its own, with keys of its own."""
    last = head("GET", target.base + "/models")
    answer = await say(target.url, post(target.chat, ASK, last=False) + SMUGGLED + last)
    assert re.findall(r"HTTP/1\.1 (\d+)", answer.text) == ["200", "401", "200"]


# -- paths


ELSEWHERE = [
    "/v1/sessions",
    "/v1/sessions/theirs",
    "/v1/sessions/theirs/trajectory",
    "/v1/pools",
    "/v1/pools/default/fence",
    "/v1//sessions",
    "//v1/sessions",
    "/v1/./sessions",
    "/v1/../v1/sessions",
    "/v1%2fsessions",
    "/v1/%73essions",
    "/V1/sessions",
    "/v1/v1/sessions",
    "/v1/v1/pools",
    "/sessions",
    "/sessions/",
    "/sessions/theirs",
    "/sessions/theirs/traces",
    "/sessions/theirs%2ftraces",
    "/traces/x",
    "/admin/workers",
    "/%61dmin/workers",
    "/admin%2fworkers",
    "//admin/workers",
    "/./admin/workers",
    "/x/../admin/workers",
    "/sessions/mine/../../admin/workers",
    "/health/workers",
    "/health/",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/tokenize",
    "/pause",
    "/resume",
    "/sleep",
    "/wake_up",
    "/collective_rpc",
    "/load",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
    "/update_weights",
    "/init_weights_update_group",
    "/reset_prefix_cache",
    "/server_info",
    "/ping",
    "/invocations",
    "http://x/v1/sessions",
    "http://127.0.0.1/admin/workers",
    "/",
]


async def test_no_path_leaves_the_agents_routes(target: Target) -> None:
    """With the agent's own, good key."""
    key = f"authorization: Bearer {target.mine['api_key']}"
    for method in ("GET", "POST", "DELETE"):
        for path in ELSEWHERE:
            answer = await say(target.url, head(method, path, key, "content-length: 2") + b"{}")
            assert answer.status == 404, (path, answer.text)
    assert not target.engine.requests


UNDER = [
    "/sessions",
    "/../sessions",
    "/../../../v1/sessions",
    "/%2e%2e/%2e%2e/admin/workers",
    "/..%2f..%2fadmin/workers",
    "/chat/completions/../../../../pause",
    "/chat/completions/",
    "//chat/completions",
    "/chat%2fcompletions/x",
    "/chat/completions%00",
    "/chat/completions%0d%0ax:%20y",
    "/chat/completions;x",
    "/tokenize",
    "/pause",
    "/metrics",
    "/load_lora_adapter",
    "/models/x",
    "/embeddings",
    "/v1/v1/chat/completions",
    "/chat\\completions",
    "",
]


async def test_nothing_below_a_session_reaches_an_engines_other_routes(target: Target) -> None:
    for path in UNDER:
        answer = await say(target.url, post(target.base + path, ASK))
        assert answer.status in (400, 404), (path, answer.text)
    assert not target.engine.requests


async def test_no_spelling_of_the_path_reaches_another_session(target: Target) -> None:
    key = target.mine["api_key"]
    bearer = f"authorization: Bearer {key}"
    for path in (
        "/sessions/theirs/v1", "/sessions/theirs%2fv1", "/sessions/mine%2f..%2ftheirs/v1",
        "/sessions/mine/../theirs/v1",
        "/sessions/mine/%2e%2e/theirs/v1", f"/sessions/theirs.{key}/v1", f"/sessions/mine.{key}/../theirs/v1",
        f"/sessions/mine.{key}%2f..%2ftheirs/v1", f"/sessions/theirs/v1/../../mine.{key}/v1", "/sessions//theirs/v1",
        "/sessions/Theirs/v1", "/sessions/theirs%00/v1", "/sessions/theirs%0d%0a/v1", "/sessions/the%C3%AFrs/v1",
        f"/sessions/.{key}/v1", "/sessions/theirs%2Ev1/v1", f"/sessions/theirs.{key[:-1]}/v1", "/sessions/theirs%FF/v1",
        f"/sessions/theirs.{target.mine['api_key']}.{key}/v1",
    ):  # fmt: skip
        for headers in ((bearer,), ()):
            answer = await say(target.url, post(f"{path}/chat/completions", ASK, *headers))
            assert answer.status in (400, 401, 403, 404), (path, answer.text)
            assert key not in answer.text
    assert not target.engine.requests


MALFORMED = [
    "GET /health HTTP/1.1 x",
    "GET /health HTTP/9.9",
    "GET\t/health HTTP/1.1",
    "GET /he alth HTTP/1.1",
    "CONNECT 169.254.169.254:80 HTTP/1.1",
    "CONNECT /health HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "GET * HTTP/1.1",
    "FOO /health HTTP/1.1",
    "GET http:// HTTP/1.1",
    "GET //\x80 HTTP/1.1",
    "GET /\x00 HTTP/1.1",
    "\x16\x03\x01\x02\x00",
    "PRI * HTTP/2.0",
    "GET",
    "",
]


async def test_a_malformed_request_line_is_refused(target: Target) -> None:
    for line in MALFORMED:
        answer = await say(target.url, line.encode("latin-1") + b"\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.status in (0, 400, 404, 405), (line, answer.text)


async def test_an_upgrade_is_not_made(target: Target) -> None:
    for protocol in ("websocket", "h2c", "TLS/1.0"):
        upgrade = (f"upgrade: {protocol}", "connection: upgrade", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
                   "sec-websocket-version: 13", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA")  # fmt: skip
        answer = await say(target.url, head("GET", target.base + "/models", *upgrade))
        assert answer.status in (0, 200, 400), answer.text


async def test_http_1_1_without_a_host_is_refused(target: Target) -> None:
    assert (await say(target.url, b"GET /health HTTP/1.1\r\n\r\n")).status == 400


# -- sizes and time


async def test_an_oversized_body_is_413_in_the_providers_shape(target: Target) -> None:
    """Declared or found out while it arrives; the whole of it is never read."""
    large = b"x" * (3 * 2**19)
    declared = await say(target.url, head("POST", target.chat, "content-length: 9999999999") + b"{")
    assert declared.status == 413
    assert json.loads(declared.text.rpartition("\r\n\r\n")[2])["error"]["type"] == "RequestTooLargeError"
    chunked = await say(
        target.url, head("POST", target.chat, "transfer-encoding: chunked") + b"%x\r\n%b\r\n" % (len(large), large)
    )
    assert chunked.status == 413
    messages = await say(target.url, head("POST", target.base + "/messages", "content-length: 9999999999"))
    assert json.loads(messages.text.rpartition("\r\n\r\n")[2])["error"]["type"] == "request_too_large"
    control = await target.admin.post("/v1/sessions", content=b"x" * (5 * 2**20))
    assert control.status_code == 413
    assert not target.engine.requests


async def test_a_body_too_large_does_not_cost_its_memory(target: Target) -> None:
    """A thousand times the limit, in chunks, after the refusal: read and thrown away, or the connection closed."""
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"

    def rss() -> int:
        return int(Path(f"/proc/{target.process.pid}/status").read_text().split("VmRSS:")[1].split()[0])

    before = await asyncio.to_thread(rss)
    await say(target.url, head("POST", target.chat, "transfer-encoding: chunked"), *[chunk] * 1600)
    assert await asyncio.to_thread(rss) - before < 32 * 1024


@IMPATIENT
async def test_a_slow_body_is_given_up(target: Target) -> None:
    """Silent, or however steadily it trickles: the time is for the whole body."""
    declared = head("POST", target.chat, "content-length: 100000")
    silent, slow = await asyncio.gather(
        say(target.url, declared + ASK[:5]), trickle(target.url, declared + ASK[:-1], b" ")
    )
    assert (silent.status, slow.status) == (408, 408)
    assert not target.engine.requests


CONTROL_ROUTES = [
    "/v1/sessions", "/v1/pools/default/open", "/v1/pools/default/workers", "/sessions", "/admin/workers",
    "/traces/query",
]  # fmt: skip
ADMIN_HEADERS = (f"authorization: Bearer {ADMIN}", "content-type: application/json")


@IMPATIENT
async def test_a_slow_body_on_a_control_route_is_given_up(target: Target) -> None:
    """As on the agents' routes, silent or trickling, with a length and in chunks."""
    admin = str(target.admin.base_url)
    for path in CONTROL_ROUTES:
        declared = head("POST", path, *ADMIN_HEADERS, "content-length: 100000")
        chunked = head("POST", path, *ADMIN_HEADERS, "transfer-encoding: chunked")
        slow = await asyncio.gather(
            say(admin, declared + b"{"), trickle(admin, declared, b" "), trickle(admin, chunked, b"1\r\n \r\n")
        )
        for answer in slow:
            assert (answer.status, answer.answers) == (408, 1), (path, answer.text)
            assert "application/problem+json" in answer.text


async def test_an_oversized_body_on_a_control_route_is_413_and_without_the_key_none_is_read(target: Target) -> None:
    admin = str(target.admin.base_url)
    for path in CONTROL_ROUTES:
        declared = head("POST", path, *ADMIN_HEADERS, f"content-length: {5 * 2**20}")
        chunked = head("POST", path, *ADMIN_HEADERS, "transfer-encoding: chunked")
        for much in (declared, chunked + b"500000\r\n" + b" " * 0x500000):
            answer = await say(admin, much)
            assert (answer.status, answer.answers) == (413, 1), (path, answer.text)
        assert (await say(admin, declared.replace(ADMIN.encode(), b"x" * 24))).status == 401


async def test_a_large_or_crowded_head_is_refused(target: Target) -> None:
    url, models = target.url, target.base + "/models"
    assert (await say(url, head("GET", models, *[f"x-{i}: y" for i in range(90)]))).status == 200
    assert (await say(url, head("GET", models, *[f"x-{i}: y" for i in range(200)]))).status == 431
    assert (await say(url, head("GET", "/" + "a" * 2**17))).status in (0, 431)
    endless = [b"y" * 2**16] * 64
    for start in (b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\nx"):
        answer = await say(url, start, *endless)
        assert answer.status in (0, 400, 431), answer.text
    chunked = head("POST", target.chat, "transfer-encoding: chunked")
    for start in (b"5;", b"0\r\nx-trailer: ", b"2\r\n{}\r\n0\r\nx: "):
        answer = await say(url, chunked + start, *endless)
        assert answer.status in (0, 400, 408), answer.text
    assert not target.engine.requests


async def test_slow_and_silent_connections_are_closed(services: Services) -> None:
    """One that says nothing, one that sends its head letter by letter, one that does so after an answered request, and
    one whose refused body does not end. The limits are shorter here, set in the process itself."""
    start = (
        "import sys; from rollway_kit import http_guard; http_guard.HEAD_S = http_guard.LEFTOVER_S = 3.0;"
        "from rollway_gateway.__main__ import main; main(['--port', '0'])"
    )
    gateway = await services.start_async("gateway", ["-c", start], env={"ROLLWAY_GATEWAY_MAX_BODY_MIB": "0.001"})
    assert http_guard.HEAD_S >= 10
    asked, refused = (
        head("GET", "/health", last=False),
        head("POST", "/sessions/s/v1/chat/completions", "content-length: 100000"),
    )
    silent, letters, again, leftover = await asyncio.gather(
        say(gateway.url),
        trickle(gateway.url, b"GET /", b"x"),
        trickle(gateway.url, asked + b"GET /", b"x"),
        trickle(gateway.url, refused, b"x"),
    )
    assert (silent.status, letters.status in (0, 408)) == (0, True)
    assert again.text.count("HTTP/1.1 200") == 1 and again.answers <= 2, again.text
    assert (leftover.status, leftover.answers) == (413, 1)


# -- headers


async def test_what_an_agent_says_in_headers_stays_here(target: Target) -> None:
    """Only the request id and the trace go on, if they are plain; nothing that steers the engine or names a peer."""
    engine = target.engine
    steering = {
        "x-data-parallel-rank": "7", "x-vllm-priority": "-1", "x-priority": "1",
        "x-forwarded-for": "10.0.0.1", "x-real-ip": "10.0.0.1",
        "forwarded": "for=1", "x-forwarded-host": "evil", "via": "1.1 x", "cookie": "a=b", "x-session-id": "theirs",
        "x-api-key": "EMPTY", "authorization": "Bearer EMPTY", "proxy-authorization": "Basic x", "te": "trailers",
        "keep-alive": "timeout=9", "proxy-connection": "keep-alive", "x-kv-transfer": "1", "x-internal": "1",
        "x-request-id": "mine-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }  # fmt: skip
    answer = await say(target.url, post(target.chat, ASK, *[f"{k}: {v}" for k, v in steering.items()]))
    assert answer.status == 200, answer.text
    sent = {k.lower(): v for k, v in engine.headers[0].items()}
    assert set(sent) <= {
        "host",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "x-request-id",
        "traceparent",
    }
    assert (sent["x-request-id"], sent["traceparent"]) == ("mine-1", steering["traceparent"])


async def test_an_odd_request_id_is_replaced(target: Target) -> None:
    for value in ("\xff\xfe", "a\tb", "x" * 300, "", "é"):
        answer = await say(target.url, post(target.chat, ASK, f"x-request-id: {value}"))
        assert answer.status == 200, answer.text
        sent = {k.lower(): v for k, v in target.engine.headers[-1].items()}["x-request-id"]
        assert len(sent) == 32
        assert sent.isalnum()
        refused = await say(target.url, post(target.base + "/messages", b"{}", f"x-request-id: {value}"))
        assert refused.status == 400, refused.text


async def test_ids_with_line_ends_make_no_session_and_no_header(target: Target) -> None:
    for sid in ("a\r\nx: y", "a\nb", "a\x00b", "a\x7fb", "a/../b", "", "/", "a/v1/b", "\u202e", "x" * 600):
        assert (await target.admin.post("/v1/sessions", json={"session_id": sid})).status_code == 400, sid
        if sid:
            assert (await target.admin.post("/sessions", json={"session_id": sid})).status_code == 400, sid


# -- bodies


THE_ENGINES_OWN = "Server got itself in trouble"
"""The scripted engine's words where vLLM would have said 400: an answer passed on, not a failure here."""


def nested(depth: int) -> bytes:
    return b'{"messages":[{"role":"user","content":"hi"}],"x":' + b"[" * depth + b"]" * depth + b"}"


BOMBS = [
    nested(300),
    nested(1000),
    nested(5000),
    nested(100_000),
    b"[" * 500_000,
    b'{"a":' * 100_000,
    b'{"messages": [{"role": "user", "content": "hi"}], "seed": ' + b"9" * 5000 + b"}",
    b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
    b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b"\xef\xbb\xbf{}",
    b"{}" + b"\x00",
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"1",
    b"{",
    b'{"messages": 1}x',
    b"\x1f\x8b\x08\x00",
    b'{"n": 1e3, "messages": []}',
    b'{"n": 18446744073709551616}',
    b'{"n": -1}',
    b'{"stream_options": []}',
    b'{"model": {}}',
]


async def test_a_hostile_body_is_a_refusal_or_a_call_never_a_failure(target: Target) -> None:
    """What is JSON and an object is the engine's to judge; this one takes anything, and has no routes but its own."""
    for route in ("/chat/completions", "/completions", "/responses", "/messages", "/messages/count_tokens"):
        for body in BOMBS:
            answer = await say(target.url, post(target.base + route, body))
            if THE_ENGINES_OWN not in answer.text:
                assert answer.status in (200, 400, 413), (route, body[:80], answer.text[:500])
            if not body.startswith(b'{"') or body.startswith((b'{"a"', b'{"messages": 1}x')) or b"\xff" in body:
                assert answer.status == 400, (route, body[:80], answer.text[:500])


async def test_duplicate_keys_have_one_meaning(target: Target) -> None:
    """The last of them, and that is the only one that goes on, so that the engine cannot read another."""
    body = b'{"messages":[],"messages":[{"role":"user","content":"hi"}],"stream":true,"stream":false}'
    answer = await say(target.url, post(target.chat, body))
    assert answer.status == 200
    assert target.engine.requests[-1][1]["messages"] == HI
    assert "text/event-stream" not in answer.text


async def test_hostile_bodies_on_the_admin_routes_are_refused(target: Target) -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"x": deep}
    for path in ("/v1/sessions", "/v1/pools/default/workers", "/v1/pools/default/open", "/v1/pools/default/fence",
                 "/sessions", "/admin/workers", "/admin/weight_version", "/traces/query",
                 "/sessions/batch_delete"):  # fmt: skip
        for raw in (*BOMBS, json.dumps({"metadata": deep, "sampling_params": deep, "url": deep}).encode()):
            answer = await target.admin.post(path, content=raw, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (path, raw[:80], answer.text)
    for session in (await target.admin.get("/sessions")).json():
        assert (await target.admin.get(f"/v1/sessions/{session['session_id']}/trajectory")).status_code == 200
    assert (await target.admin.post("/v1/pools/default/open", json={})).status_code == 200


# -- addresses


NO_WORKERS = [
    "http://169.254.169.254/latest/meta-data",
    "http://[fe80::1]:8000",
    "http://[::ffff:169.254.169.254]",
    "http://[fd00:ec2::254]/",
    "http://0xa9fea9fe/",
    "http://2852039166/",
    "http://169.254.43518/",
    "http://0251.0376.0251.0376/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://100.100.100.200/",
    "http://224.0.0.1/",
    "http://user:hunter2@x/",
    "http://:hunter2@x/",
    "file:///etc/passwd",
    "gopher://x:70/_",
    "ftp://x/",
    "//x/",
    "x:8000",
    "http://",
    "http://x:0",
    "http://x:99999",
    "http://x/?q",
    "http://x/#f",
    "http://x\\@y/",
    "http://x\r\nhost: y/",
    "http://x y/",
    "http://[fe80::1%25eth0]/",
    "http://%31%36%39.254.169.254/",
    "unix:///var/run/docker.sock",
]


async def test_a_worker_may_not_be_everywhere(target: Target) -> None:
    for url in NO_WORKERS:
        for path in ("/v1/pools/default/workers", "/admin/workers"):
            answer = await target.admin.post(path, json={"url": url})
            assert answer.status_code == 400, (path, url, answer.text)
            assert "hunter2" not in answer.text
    assert "hunter2" not in target.process.logs()
    assert len((await target.admin.get("/v1/pools/default")).json()["workers"]) == 1


async def test_a_name_is_judged_by_what_it_resolves_to_when_it_is_called() -> None:
    resolver = WorkerResolver()
    try:
        with pytest.raises(OSError, match="link-local or metadata"):
            await resolver.resolve("0xa9fea9fe", 80)
        assert [found["host"] for found in await resolver.resolve("localhost", 80)] == ["127.0.0.1"]
    finally:
        await resolver.close()
    assert check_worker_url("http://169.254.169.254", allow_link_local=True)


async def test_a_workers_redirect_is_not_followed(target: Target) -> None:
    """Neither by a health check nor by a call: what it points to is never asked."""
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect(location=f"{target.engine.url}{request.path}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", redirect)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        added = await target.admin.post("/v1/pools/aside/workers", json={"url": f"http://127.0.0.1:{port}"})
        assert (added.status_code, added.json()["healthy"]) == (201, False)
        await eventually(lambda: len(asked) > 1, "further health checks")
        assert set(asked) == {"/health"}
    finally:
        await runner.cleanup()
