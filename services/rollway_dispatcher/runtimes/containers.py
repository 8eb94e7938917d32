"""Agent containers that already run, by URL (the ``http`` runtime)."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx

from rollway_dispatcher.runtimes.runtime import StartError
from rollway_dispatcher.runtimes.starts import StartsInFlight
from rollway_wire.batch import HttpRuntime
from rollway_wire.failures import FailureType

SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
PING_TIMEOUT_S = 5.0
PING_EVERY_S = 5.0
DEAD_AFTER_PINGS = 3
START_TIMEOUT_S = 60.0


class Containers:
    """Who runs where, over all batches: two batches that name the same URL share its slots."""

    def __init__(self) -> None:
        self.http = httpx.AsyncClient(
            timeout=httpx.Timeout(START_TIMEOUT_S, connect=PING_TIMEOUT_S),
            limits=httpx.Limits(max_connections=512, max_keepalive_connections=32),
            trust_env=False,
        )
        self.used: Counter[str] = Counter()
        self.place: dict[str, str] = {}
        """URL by session id."""

    def take(self, session_id: str, url: str) -> None:
        self.place[session_id] = url
        self.used[url] += 1

    def release(self, session_id: str) -> None:
        url = self.place.pop(session_id, None)
        if url is not None:
            self.used[url] -= 1

    async def ping(self, url: str) -> str | None:
        """The status that /ping answers, or None when it does not answer with one."""
        try:
            answer = await self.http.get(f"{url}/ping", timeout=PING_TIMEOUT_S)
            status = answer.json().get("status") if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, AttributeError):
            return None
        return status if isinstance(status, str) else None

    async def close(self) -> None:
        await self.http.aclose()


class HttpContainers:
    """One batch's pool of URLs, ``sessions_per_url`` rollouts in each.

    The container's own /ping decides: one that does not answer is passed over, and so is one that says HealthyBusy
    while we know of nothing that runs in it (an agent that outlived its time-out). The AgentCore contract has no call
    that ends one rollout inside a container, so a stop only frees the slot.
    """

    def __init__(self, spec: HttpRuntime, shared: Containers) -> None:
        self._urls = [u.rstrip("/") for u in spec.urls]
        self._per_url = spec.sessions_per_url
        self._shared = shared
        self._starts = StartsInFlight()

    async def start(self, session_id: str, payload: bytes) -> bytes:
        with self._starts.begun(session_id):
            return await self._start(session_id, payload)

    async def _start(self, session_id: str, payload: bytes) -> bytes:
        url = self._shared.place.get(session_id) or await self._choose(session_id)
        try:
            answer = await self._shared.http.post(
                f"{url}/invocations",
                content=payload,
                headers={"content-type": "application/json", "accept": "application/json", SESSION_HEADER: session_id},
            )
        except httpx.HTTPError as e:
            raise StartError(FailureType.START_FAILED, f"{url} did not answer: {type(e).__name__}: {e}") from e
        if answer.status_code == 429 or answer.status_code == 503:
            self._shared.release(session_id)
            raise StartError(FailureType.THROTTLED, f"{url} has no room: {answer.status_code} {answer.text[:200]}")
        if answer.status_code in (400, 404, 405, 413, 415, 422):
            message = f"{url}/invocations does not take invocations: {answer.status_code} {answer.text[:300]}"
            raise StartError(FailureType.CONTRACT_ERROR, message)
        if not answer.is_success:
            message = f"{url} did not accept the invocation: {answer.status_code} {answer.text[:300]}"
            raise StartError(FailureType.START_FAILED, message)
        return answer.content

    async def _choose(self, session_id: str) -> str:
        """Take a slot in the least used container that answers.

        Raises:
            StartError: none has a slot (throttled) or none answers (start_failed).
        """
        tried: dict[str, str] = {}
        while True:
            free = [u for u in self._urls if self._shared.used[u] < self._per_url and u not in tried]
            if not free:
                break
            url = min(free, key=lambda u: self._shared.used[u])
            lonely = self._shared.used[url] == 0
            self._shared.take(session_id, url)
            status = await self._shared.ping(url)
            if status == "Healthy" or (status == "HealthyBusy" and not lonely):
                return url
            self._shared.release(session_id)
            tried[url] = status or "no answer"
        if tried and all(s == "no answer" for s in tried.values()):
            raise StartError(FailureType.START_FAILED, f"no container answers /ping: {', '.join(sorted(tried))}")
        raise StartError(FailureType.THROTTLED, f"no free slot in {len(self._urls)} containers")

    async def stop(self, session_id: str) -> None:
        await self._starts.settle(session_id)
        self._shared.release(session_id)

    async def watch(self, session_id: str) -> str | None:
        """Dead is a container whose /ping does not answer several times in a row."""
        url, missed = self._shared.place.get(session_id), 0
        while url is not None and missed < DEAD_AFTER_PINGS:
            await asyncio.sleep(PING_EVERY_S)
            missed = 0 if await self._shared.ping(url) is not None else missed + 1
        return None if url is None else f"the container {url} does not answer /ping"
