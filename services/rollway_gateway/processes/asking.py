"""The processes' own admin listeners, asked by the supervisor: one of them, or all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import orjson
from fastapi import Request, Response
from yarl import URL

from rollway_gateway.processes.told import Told
from rollway_gateway.processes.totals import PATH, Totals
from rollway_wire.placement import home_of
from rollway_wire.problems import Unavailable

_KEPT = ("accept", "content-type", "authorization", "host")


@dataclass(frozen=True, slots=True)
class Answer:
    process: int
    status: int
    content_type: str
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < 400

    def response(self) -> Response:
        return Response(self.body, self.status, media_type=self.content_type or None)


class Processes:
    """See the module."""

    def __init__(self, urls: Sequence[str], key: str) -> None:
        self._urls = urls
        self._auth = {"authorization": f"Bearer {key}"}
        self.places = [str(k) for k in range(len(urls))]
        self.told = Told()
        self.http: aiohttp.ClientSession | None = None

    async def ask(
        self, process: int, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Raises:
        Unavailable: it does not answer: it has ended and is being started again."""
        assert self.http is not None
        url = URL(self._urls[process] + target, encoded=True)
        try:
            async with self.http.request(
                method, url, data=body or None, headers={**(headers or {}), **self._auth}, allow_redirects=False
            ) as answer:
                kind = answer.headers.get("content-type", "")
                return Answer(process, answer.status, kind, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise Unavailable(f"process {process} does not answer: {type(e).__name__}", retry_after_s=1) from e

    async def at_home(self, session_id: str, request: Request, body: bytes) -> Answer:
        place = int(home_of(session_id, self.places))
        return await self.ask(place, request.method, _target(request), body, _kept(request))

    async def all(self, request: Request, body: bytes) -> list[Answer]:
        """Every process's answer, in order.

        Raises:
            Unavailable: one does not answer; the others were asked all the same.
        """
        return await self._all(request.method, _target(request), body, _kept(request))

    async def totals(self) -> list[list[Totals]]:
        """Every process's, in order.

        Raises:
            Unavailable: one does not answer.
        """
        answers = await self._all("GET", PATH, b"", {})
        failed = next((a for a in answers if not a.ok), None)
        if failed is not None:
            raise Unavailable(f"process {failed.process} does not tell its totals: {failed.status}", retry_after_s=1)
        return [[Totals(*row) for row in orjson.loads(a.body)] for a in answers]

    async def _all(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> list[Answer]:
        asked = [self.ask(k, method, target, body, headers) for k in range(len(self.places))]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [a for a in answers if isinstance(a, Answer)]


def _target(request: Request) -> str:
    raw: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


def _kept(request: Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _KEPT if name in request.headers}
