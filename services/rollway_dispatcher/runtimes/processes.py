"""A local process per session (the ``process`` runtime)."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from rollway_dispatcher.outbound import NoAnswer, Outbound
from rollway_dispatcher.runtimes.agent_process import (
    SESSION_VARIABLE,
    STATE_VARIABLE,
    AgentProcess,
    spawn,
    survivors,
)  # fmt: skip
from rollway_dispatcher.runtimes.containers import SESSION_HEADER
from rollway_dispatcher.runtimes.runtime import StartError, StopUnconfirmed
from rollway_dispatcher.runtimes.starts import StartsInFlight
from rollway_wire.batch import ProcessRuntime
from rollway_wire.failures import FailureType

INVOKE_TIMEOUT_S = 30.0
_PING_EVERY_S = 0.05


class Processes:
    """Every agent process of this dispatcher."""

    def __init__(self, folder: Path, s3_endpoint_url: str | None, *, keep: bool) -> None:
        """``folder``: for the agents' logs; it also names the owner of the agents across restarts. ``keep``: the
        agents outlive `close`."""
        self._folder = folder
        self._keep = keep
        self._s3_endpoint_url = s3_endpoint_url
        self.owner = str(folder.absolute())
        self.http = Outbound(max_connections=256, keep_alive=False)
        self.agents: dict[str, AgentProcess] = {}
        self._followers: set[asyncio.Task[None]] = set()
        self._looked = False
        self._looking = asyncio.Lock()

    def look_again(self) -> None:
        """Agents may be there now that are to be found and were not at the last look."""
        self._looked = False

    async def find(self, session_id: str) -> AgentProcess | None:
        """The session's process, also one that an earlier run of ours started, or a dispatcher we take over from."""
        async with self._looking:
            if not self._looked:
                await self._look()
        return self.agents.get(session_id)

    async def _look(self) -> None:
        self._looked = True  # before: who says "again" meanwhile is heard
        try:
            there = await asyncio.to_thread(survivors, self.owner)
        except BaseException:
            self._looked = False
            raise
        for session_id, agent in there.items():
            if session_id not in self.agents:
                self._add(session_id, agent)

    async def spawn(self, session_id: str, spec: ProcessRuntime) -> AgentProcess:
        port = _free_port()
        argv = [part.replace("{port}", str(port)) for part in spec.command]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLWAY_DISPATCHER_", "ROLLWAY_GATEWAY_"))}
        if self._s3_endpoint_url is not None:
            env.setdefault("AWS_ENDPOINT_URL_S3", self._s3_endpoint_url)
        env |= spec.env | {"PORT": str(port), SESSION_VARIABLE: session_id, STATE_VARIABLE: self.owner}
        log_path = self._folder / f"{session_id}.log"
        # Shielded: a spawn whose outcome we did not wait for would be a process we do not follow.
        spawning = asyncio.ensure_future(
            asyncio.to_thread(spawn, argv, port=port, cwd=spec.cwd, env=env, log_path=log_path, limits=spec.limits)
        )
        try:
            agent = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            self._add(session_id, await spawning)
            raise
        self._add(session_id, agent)
        return agent

    def _add(self, session_id: str, agent: AgentProcess) -> None:
        self.agents[session_id] = agent
        follower = asyncio.create_task(agent.follow(), name=f"follow {session_id}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    def forget(self, session_id: str) -> None:
        self.agents.pop(session_id, None)

    async def close(self) -> None:
        """End the agents, or leave them to the next start, which finds them."""
        if not self._keep:
            await asyncio.gather(*(agent.end() for agent in self.agents.values()))
        followers = list(self._followers)
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        await self.http.close()


class LocalProcess:
    """Starts each session as one process of a batch's command."""

    def __init__(self, spec: ProcessRuntime, shared: Processes) -> None:
        self._spec = spec
        self._shared = shared
        self._starts = StartsInFlight()

    async def start(self, session_id: str, payload: bytes) -> bytes:
        with self._starts.begun(session_id):
            return await self._start(session_id, payload)

    async def _start(self, session_id: str, payload: bytes) -> bytes:
        try:
            agent = await self._shared.find(session_id) or await self._shared.spawn(session_id, self._spec)
        except OSError as e:
            raise StartError(FailureType.CONTRACT_ERROR, f"the agent's command cannot be run: {e}") from e
        await self._ready(agent)
        return await self._invoke(agent, session_id, payload)

    async def _ready(self, agent: AgentProcess) -> None:
        """Wait until /ping answers."""
        limit = self._spec.start_timeout_s
        try:
            async with asyncio.timeout(limit):
                while not await self._answers(agent):
                    if agent.dead.is_set():
                        raise StartError(FailureType.START_FAILED, await asyncio.to_thread(agent.epitaph))
                    await asyncio.sleep(_PING_EVERY_S)
        except TimeoutError:
            message = f"the agent did not answer /ping on port {agent.port} within {limit:g} s: does it serve on $PORT?"
            raise StartError(FailureType.START_FAILED, message) from None

    async def _answers(self, agent: AgentProcess) -> bool:
        try:
            answer = await self._shared.http.call("GET", f"http://127.0.0.1:{agent.port}/ping", silence_s=5)
        except NoAnswer:
            return False
        return answer.status == 200

    async def _invoke(self, agent: AgentProcess, session_id: str, payload: bytes) -> bytes:
        try:
            answer = await self._shared.http.call(
                "POST",
                f"http://127.0.0.1:{agent.port}/invocations",
                body=payload,
                headers={"content-type": "application/json", "accept": "application/json", SESSION_HEADER: session_id},
                silence_s=INVOKE_TIMEOUT_S,
            )
        except NoAnswer as e:
            died = await asyncio.to_thread(agent.epitaph) if agent.dead.is_set() else str(e)
            raise StartError(FailureType.START_FAILED, f"the agent did not accept the invocation: {died}") from e
        if not answer.ok:
            kind = FailureType.CONTRACT_ERROR if 400 <= answer.status < 500 else FailureType.START_FAILED
            raise StartError(kind, f"the agent answered the invocation {answer.status}: {answer.text[:300]}")
        return answer.body

    async def stop(self, session_id: str) -> None:
        while session_id in self._starts:
            # Once its process is dead the start fails at once; before there is one, there is nothing to wait for long.
            if (starting := self._shared.agents.get(session_id)) is not None:
                starting.kill()
            await self._starts.settle(session_id, within_s=_PING_EVERY_S)
        agent = await self._shared.find(session_id)
        if agent is not None:
            if not await agent.end():
                raise StopUnconfirmed(f"process group {agent.pid} is still there after SIGKILL")
            self._shared.forget(session_id)

    async def watch(self, session_id: str) -> str | None:
        agent = await self._shared.find(session_id)
        if agent is None:
            return "the agent process is gone"
        await agent.dead.wait()
        return await asyncio.to_thread(agent.epitaph)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
