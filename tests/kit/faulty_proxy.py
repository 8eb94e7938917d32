"""An HTTP proxy that mistreats what passes through it: the network and the service behind it, on a bad day."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import aiohttp
from aiohttp import web
from yarl import URL

HOP = {"connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request. The default is nothing."""

    name: str = ""
    """What it is counted as."""
    delay_s: float = 0.0
    """Before it is passed on."""
    times: int = 1
    """How often it is passed on; the last answer counts. 0: never."""
    answer: tuple[int, bytes] | None = None
    """In place of the answer."""
    breaks: bool = False
    """The connection breaks in place of the answer."""
    cuts: bool = False
    """The connection breaks in the middle of the answer's body."""
    rewrite: Callable[[bytes], bytes] | None = None
    """Of the answer's body."""


NOTHING = Fault()


class FaultyProxy:
    """``targets`` are tried in order until one takes the connection; none: 502. ``draw`` says what becomes of a
    request, ``before`` and ``after`` are told of it and of its answer. A caller that leaves takes its request along."""

    def __init__(
        self,
        targets: Callable[[], list[str]],
        draw: Callable[[web.BaseRequest], Fault],
        before: Callable[[web.BaseRequest], None] = lambda _: None,
        after: Callable[[web.BaseRequest], None] = lambda _: None,
    ) -> None:
        self._targets, self._draw, self._before, self._after = targets, draw, before, after
        self.counts: Counter[str] = Counter()
        """Faults by name."""
        self.url = ""

    async def __aenter__(self) -> FaultyProxy:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=300, sock_connect=60)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        self._runner = web.ServerRunner(web.Server(self._serve, handler_cancellation=True), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        fault = self._draw(request)
        if fault.name:
            self.counts[fault.name] += 1
        self._before(request)
        await asyncio.sleep(fault.delay_s)
        answer = None
        for _ in range(fault.times):
            answer = await self._pass_on(request, body)
        self._after(request)
        if fault.breaks:
            return self._broken(request)
        if fault.answer is not None:
            return web.Response(status=fault.answer[0], body=fault.answer[1])
        if answer is None:
            return web.Response(status=502)
        return await self._cut(request, answer) if fault.cuts else self._told(answer, fault)

    async def _pass_on(self, request: web.BaseRequest, body: bytes) -> web.Response | None:
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in HOP]
        for target in self._targets():
            url = URL(target + request.raw_path, encoded=True)
            try:
                async with self._http.request(
                    request.method, url, data=body or None, headers=headers, allow_redirects=False
                ) as answer:
                    read = await answer.read()
                    kept = [(k, v) for k, v in answer.headers.items() if k.lower() not in HOP]
                    return web.Response(status=answer.status, body=read, headers=dict(kept))
            except aiohttp.ClientConnectorError:
                continue
            except (aiohttp.ClientError, TimeoutError):  # it may have been taken: another target may not get it, too
                return None
        return None

    @staticmethod
    def _told(answer: web.Response, fault: Fault) -> web.Response:
        if fault.rewrite is not None:
            assert isinstance(answer.body, bytes)
            answer.body = fault.rewrite(answer.body)
        return answer

    @staticmethod
    def _broken(request: web.BaseRequest) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _cut(self, request: web.BaseRequest, answer: web.Response) -> web.StreamResponse:
        assert isinstance(answer.body, bytes)
        half = web.StreamResponse(status=answer.status, headers=answer.headers)
        half.content_length = len(answer.body)
        await half.prepare(request)
        await half.write(answer.body[: len(answer.body) // 2])
        self._broken(request)
        return half
