"""All sessions of the emulator: routing, quota, rate limit, chaos, and the tasks that own the sessions' lives."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from rollway_emulator.agents import AgentSpec
from rollway_emulator.chaos import Chaos, ChaosSpec
from rollway_emulator.errors import (
    ResourceNotFoundException,
    RuntimeClientError,
    ServiceQuotaExceededException,
    ThrottlingException,
)
from rollway_emulator.lifecycle import Event
from rollway_emulator.session import Premises, Session
from rollway_emulator.settings import EmulatorSettings
from rollway_emulator.token_bucket import TokenBucket
from rollway_emulator.validation import RuntimeAddress, StopCall

log = structlog.get_logger()

_REMEMBERED_STOPS = 10_000
_REMEMBERED_SESSIONS = 200


class Fleet:
    """One per process, on one event loop. A session is known by (runtime ARN, session id)."""

    def __init__(self, settings: EmulatorSettings, agents: Sequence[AgentSpec], premises: Premises) -> None:
        self._settings = settings
        self._premises = premises
        self.agents = {agent.arn: agent for agent in agents}
        self._chaos = {agent.arn: Chaos(agent.chaos) for agent in agents}
        self._buckets = {agent.arn: TokenBucket(settings.tps, settings.burst) for agent in agents}
        self._routes: dict[tuple[str, str], Session] = {}
        self._lives: dict[asyncio.Task[None], Session] = {}
        self._stops: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._past: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED_SESSIONS)
        self._closing = False

    def agent(self, address: RuntimeAddress) -> AgentSpec:
        """Raises:
        ResourceNotFoundException: no such runtime, or no such endpoint of it.
        """
        found = self.agents.get(address.arn)
        if found is None and address.account_id is not None:
            named = (a for a in self.agents.values() if a.runtime_id == address.arn)
            found = next((a for a in named if a.account_id == address.account_id), None)
        if found is None:
            raise ResourceNotFoundException(f"no agent runtime {address.arn}; the agents file lists those that exist")
        if address.qualifier not in found.qualifiers:
            known = ", ".join(sorted(found.qualifiers))
            raise ResourceNotFoundException(f"no endpoint {address.qualifier} of {found.arn}; it has: {known}")
        return found

    def chaos(self, arn: str) -> Chaos:
        return self._chaos[arn]

    def set_chaos(self, arn: str, spec: ChaosSpec) -> None:
        """From the next draw on; seeds begin again."""
        self._chaos[arn] = Chaos(spec)
        log.info("chaos_set", arn=arn, chaos=spec.model_dump(exclude_none=True))

    def throttle(self, agent: AgentSpec) -> None:
        """Spend one request of the rate that invoke and stop share.

        Raises:
            ThrottlingException: none is left, or chaos says so.
        """
        if not self._buckets[agent.arn].take(time.monotonic()) or self._chaos[agent.arn].throttles():
            raise ThrottlingException(f"Rate exceeded: {self._settings.tps:g} requests a second for {agent.arn}")

    def admit(self, agent: AgentSpec, session_id: str) -> Session:
        """The session that takes this id's calls: the living one, else a fresh one.

        Raises:
            ServiceQuotaExceededException: a fresh one would be over the active-session quota.
        """
        session = self._routes.get((agent.arn, session_id))
        if session is not None and session.takes_calls:
            return session
        if self._closing:
            raise RuntimeClientError("the emulator is shutting down")
        active = sum(s.takes_calls for s in self._routes.values())
        if active >= self._settings.max_sessions:
            raise ServiceQuotaExceededException(f"maximum active sessions reached: {self._settings.max_sessions}")
        session = Session(agent, session_id, self._chaos[agent.arn], self._premises)
        self._routes[agent.arn, session_id] = session
        life = asyncio.create_task(session.run(), name=f"session {session_id}")
        self._lives[life] = session
        life.add_done_callback(self._bury)
        return session

    def _bury(self, life: asyncio.Task[None]) -> None:
        session = self._lives.pop(life)
        key = (session.agent.arn, session.session_id)
        if self._routes.get(key) is session:
            del self._routes[key]
        self._past.append(session.view())
        if not life.cancelled() and (error := life.exception()) is not None:
            log.error("session_task_failed", session_id=session.session_id, exc_info=error)

    async def stop(self, agent: AgentSpec, call: StopCall) -> None:
        """End the session; when this returns none of its processes lives. The same client token again does nothing.

        Raises:
            ResourceNotFoundException: no session of this id takes calls.
        """
        token_key = (agent.arn, call.client_token or "")
        if call.client_token is not None and self._stops.get(token_key) == call.session_id:
            return
        session = self._routes.get((agent.arn, call.session_id))
        if session is None or not session.takes_calls:
            raise ResourceNotFoundException(f"no active session {call.session_id} of {agent.arn}")
        session.signal(Event.STOP)
        if call.client_token is not None:
            self._stops[token_key] = call.session_id
            if len(self._stops) > _REMEMBERED_STOPS:
                self._stops.popitem(last=False)
        await session.ended()

    async def kill(self, session_id: str) -> int:
        """Lose the containers of this session id, of whatever runtime, with SIGKILL; how many there were."""
        lost = [s for s in self._lives.values() if s.session_id == session_id]
        for session in lost:
            session.signal(Event.KILLED)
        for session in lost:
            await session.ended()
        return len(lost)

    def active(self) -> Iterable[Session]:
        """Sessions with processes, those being stopped among them."""
        return tuple(self._lives.values())

    def past(self) -> list[dict[str, Any]]:
        """Views of the last sessions that ended, oldest first."""
        return list(self._past)

    async def close(self) -> None:
        """End every session and wait for it."""
        self._closing = True
        for session in self.active():
            session.signal(Event.SHUTDOWN)
        if self._lives:
            await asyncio.wait(tuple(self._lives))


@asynccontextmanager
async def open_fleet(
    settings: EmulatorSettings, agents: Sequence[AgentSpec], premises: Premises
) -> AsyncIterator[Fleet]:
    fleet = Fleet(settings, agents, premises)
    try:
        yield fleet
    finally:
        await fleet.close()
