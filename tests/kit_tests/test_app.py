"""The app every control plane starts from: whatever goes wrong is answered as problem+json with the right status."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from rollway_kit.app import create_app
from rollway_wire.problems import Conflict, RollwayError, TooManyRequests
from tests.kit.asgi_server import serving

LIMIT = 1000


class Item(BaseModel):
    name: str
    size: int


def make_app() -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    app = create_app("example", lifespan=lifespan, max_body_bytes=LIMIT)

    @app.post("/items")
    async def add(item: Item) -> Item:
        return item

    @app.get("/conflict")
    async def conflict() -> None:
        raise Conflict("already there", item="i-1")

    @app.get("/busy")
    async def busy() -> None:
        raise TooManyRequests("slow down", retry_after_s=0.2)

    @app.get("/bug")
    async def bug() -> None:
        raise ZeroDivisionError("secret detail")

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout", {"x-spout": "yes"})

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b"]))

    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(make_app()) as url, httpx.AsyncClient(base_url=url, timeout=30) as made:
        yield made


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def problem(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == response.status_code
    assert body["instance"] == response.request.url.path
    assert {"type", "title", "detail"} <= body.keys()
    return body


async def test_a_good_request_is_answered_and_logged_once(client: httpx.AsyncClient, logged: list[Any]) -> None:
    assert (await client.post("/items", json={"name": "a", "size": 1})).json() == {"name": "a", "size": 1}
    lines = [e for e in logged if e["event"] == "request"]
    assert [(e["method"], e["path"], e["status"]) for e in lines] == [("POST", "/items", 200)]
    assert lines[0]["ms"] > 0


async def test_our_own_error_keeps_its_status_code_and_extras(client: httpx.AsyncClient) -> None:
    body = problem(await client.get("/conflict"))
    assert (body["status"], body["detail"], body["item"]) == (409, "already there", "i-1")
    assert body["type"] == "urn:rollway:problem:conflict"


async def test_an_error_that_passes_says_when_to_come_back_in_whole_seconds(client: httpx.AsyncClient) -> None:
    response = await client.get("/busy")
    assert problem(response)["retry_after_s"] == 0.2
    assert response.headers["retry-after"] == "1"


async def test_an_unknown_path_is_404(client: httpx.AsyncClient) -> None:
    assert problem(await client.get("/nowhere"))["type"] == "urn:rollway:problem:not_found"


async def test_a_wrong_method_is_405_and_says_which_are_right(client: httpx.AsyncClient) -> None:
    response = await client.delete("/items")
    assert problem(response)["type"] == "urn:rollway:problem:method_not_allowed"
    assert response.headers["allow"] == "POST"


async def test_an_http_exception_keeps_its_headers(client: httpx.AsyncClient) -> None:
    response = await client.get("/teapot")
    assert problem(response)["detail"] == "short and stout"
    assert response.headers["x-spout"] == "yes"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{"name": "a"}', "body/size"),
        (b'{"name": "a", "size": "big"}', "body/size"),
        (b"[1]", "body"),
        (b'{"name": ', "body/"),
        (b"\xff\xfe\x00", "body"),
        (b"", "body"),
    ],
)
async def test_a_body_that_does_not_fit_is_422_and_names_the_place(
    client: httpx.AsyncClient, content: bytes, where: str
) -> None:
    response = await client.post("/items", content=content, headers={"content-type": "application/json"})
    body = problem(response)
    assert body["status"] in (400, 422)
    if body["status"] == 422:
        assert body["detail"].startswith(where)
        assert body["errors"][0]["where"].startswith(where)


async def test_a_bug_is_500_without_its_detail_and_is_logged_with_it(
    client: httpx.AsyncClient, logged: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    body = problem(await client.get("/bug"))
    assert body["status"] == 500
    assert "secret detail" not in json.dumps(body)
    assert any(e["event"] == "unhandled_exception" and "secret detail" in repr(e["exc_info"]) for e in logged)
    assert [e["status"] for e in logged if e["event"] == "request"] == [500]


async def test_a_declared_body_over_the_limit_is_413(client: httpx.AsyncClient) -> None:
    response = await client.post("/items", content=b"x" * (LIMIT + 1))
    assert problem(response)["detail"] == f"request body is over {LIMIT} bytes"


async def test_a_body_over_the_limit_is_413_when_it_declares_no_length(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(LIMIT // 100 + 1):
            yield b"x" * 100

    response = await client.post("/items", content=chunks(), headers={"content-type": "application/json"})
    assert response.request.headers["transfer-encoding"] == "chunked"
    assert problem(response)["status"] == 413


async def test_a_body_of_exactly_the_limit_is_read(client: httpx.AsyncClient) -> None:
    frame = len('{"name":"","size":1}')
    content = b'{"name":"%s","size":1}' % (b"x" * (LIMIT - frame))
    assert len(content) == LIMIT
    assert (
        await client.post("/items", content=content, headers={"content-type": "application/json"})
    ).status_code == 200


async def test_the_connection_serves_on_after_a_refused_body(client: httpx.AsyncClient) -> None:
    assert (await client.post("/items", content=b"x" * (LIMIT * 50))).status_code == 413
    assert (await client.get("/conflict")).status_code == 409


async def test_a_stream_passes_through(client: httpx.AsyncClient) -> None:
    assert (await client.get("/stream")).content == b"ab"


async def test_a_body_over_the_limit_reaches_a_route_that_reads_it_itself_as_our_error() -> None:
    seen: list[Exception] = []
    app = make_app()

    async def raw(scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive()).get("more_body"):
                pass
        except RollwayError as e:
            seen.append(e)
            raise

    app.mount("/raw", raw)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as made:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        assert (await made.post("/raw/", content=chunks())).status_code == 413
    assert [e.status for e in seen] == [413]  # type: ignore[attr-defined]
