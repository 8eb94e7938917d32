"""Agent containers that already run, by URL (the ``http`` runtime)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

from rollway_dispatcher.outbound import NoAnswer, Outbound
from rollway_dispatcher.runtimes.runtime import StartError
from rollway_dispatcher.runtimes.starts import StartsInFlight
from rollway_wire.batch import HttpRuntime
from rollway_wire.failures import FailureType

SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
PING_TIMEOUT_S = 5.0
PING_EVERY_S = 5.0
DEAD_AFTER_PINGS = 3
START_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Pulse:
    """What /ping of one URL said lately, shared by all who watch it."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked_at: float = float("-inf")
    missed: int = 0
    """In a row."""


class Containers:
    """Who runs where, over all batches: two batches that name the same URL share its slots."""

    def __init__(self) -> None:
        self.http = Outbound(max_connections=256, keep_alive=False)
        self._pulses: dict[str, Pulse] = {}
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
            answer = await self.http.call("GET", f"{url}/ping", silence_s=PING_TIMEOUT_S)
            said = json.loads(answer.body) if answer.status == 200 else None
        except (NoAnswer, ValueError):
            return None
        status = said.get("status") if isinstance(said, dict) else None
        return status if isinstance(status, str) else None

    async def missed_pings(self, url: str) -> int:
        """How many pings in a row the container has not answered. However many ask, it is pinged once an interval."""
        pulse = self._pulses.setdefault(url, Pulse())
        now = asyncio.get_running_loop().time
        async with pulse.asking:
            if now() - pulse.asked_at >= PING_EVERY_S * 0.9:
                pulse.missed = 0 if await self.ping(url) is not None else pulse.missed + 1
                pulse.asked_at = now()
        return pulse.missed

    async def close(self) -> None:
        await self.http.close()


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
            answer = await self._shared.http.call(
                "POST",
                f"{url}/invocations",
                body=payload,
                headers={"content-type": "application/json", "accept": "application/json", SESSION_HEADER: session_id},
                silence_s=START_TIMEOUT_S,
            )
        except NoAnswer as e:
            raise StartError(FailureType.START_FAILED, f"{url} did not answer: {e}") from e
        if answer.status in (429, 503):
            self._shared.release(session_id)
            raise StartError(FailureType.THROTTLED, f"{url} has no room: {answer.status} {answer.text[:200]}")
        if answer.status in (400, 404, 405, 413, 415, 422):
            message = f"{url}/invocations does not take invocations: {answer.status} {answer.text[:300]}"
            raise StartError(FailureType.CONTRACT_ERROR, message)
        if not answer.ok:
            message = f"{url} did not accept the invocation: {answer.status} {answer.text[:300]}"
            raise StartError(FailureType.START_FAILED, message)
        return answer.body

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
        url = self._shared.place.get(session_id)
        while url is not None:
            await asyncio.sleep(PING_EVERY_S)
            if await self._shared.missed_pings(url) >= DEAD_AFTER_PINGS:
                break
        return None if url is None else f"the container {url} does not answer /ping"
