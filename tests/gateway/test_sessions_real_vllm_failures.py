"""What goes wrong in a real agent's session costs no token twice: clients that leave, connections that break, weights
that change in mid-turn. The engine is a real vLLM server with a real model, and its own counter is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from rollway_gateway.session import Session
from rollway_wire.tokens import Trajectory
from tests.gateway.before_vllm import gateway_before, heard
from tests.gateway.conftest import RunningGateway
from tests.kit.cutting_proxy import CuttingProxy
from tests.kit.deadlines import eventually
from tests.kit.engine_word import (
    LARGEST,
    generated,
    largest_difference,
    prompt_logprobs,
    running,
    turn_differences,
    worker_ledger,
)
from tests.kit.other_weights import write_other_weights
from tests.kit.sum_agents import Dialect, SumAgent, make_agent
from tests.kit.vllm_server import VllmServer, engine_client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

CHATS: tuple[Dialect, ...] = ("chat", "responses", "messages")
DIALECTS: tuple[Dialect, ...] = (*CHATS, "completions")
LONG = {"min_tokens": 60}


class Bench:
    """A gateway before the server, and what the engine samples from here on."""

    def __init__(self, gateway: RunningGateway, server: VllmServer, http: httpx.AsyncClient, before: int) -> None:
        self.gateway, self.server, self.http, self._before = gateway, server, http, before
        self.agents = AsyncExitStack()

    async def ledger(self) -> dict[str, Any]:
        """The worker's, which the engine's counter confirms."""
        await eventually(self._idle, "the engine is idle", within_s=120)
        ledger = await worker_ledger(self.gateway.http, self.server.url)
        assert ledger["engine"] == await generated(self.http, self.server.url) - self._before, ledger
        return ledger

    async def sampled(self) -> int:
        """By the engine's counter, all of it captured."""
        ledger = await self.ledger()
        assert (ledger["captured"], ledger["cut_off"]) == (ledger["engine"], 0), ledger
        return int(ledger["engine"])

    async def _idle(self) -> bool:
        return not await running(self.http, self.server.url)

    async def agent(
        self, dialect: Dialect, proxy: CuttingProxy | None = None, **options: Any
    ) -> tuple[SumAgent, Session]:
        ticket = await self.gateway.open()
        url = ticket["base_url"] if proxy is None else proxy.url + ticket["base_url"].removeprefix(self.gateway.url)
        made = make_agent(dialect, url, self.server.model_path, **options)
        self.agents.push_async_callback(made.close)
        return made, self.gateway.inside.store.get(ticket["session_id"])

    async def seal(self, session: Session) -> Trajectory:
        return await self.gateway.seal(session.session_id)

    async def confirmed(self, made: Trajectory) -> None:
        """One sequence, whose log-probs are the engine's own. Samples a token."""
        assert (made.incomplete, len(made.sequences)) == (None, 1), made.metadata
        (row,) = made.sequences
        theirs = await prompt_logprobs(self.http, self.server.url, self.server.model, row.token_ids.tolist())
        assert largest_difference(row, theirs) <= LARGEST


@asynccontextmanager
async def bench(server: VllmServer, **settings: Any) -> AsyncIterator[Bench]:
    async with gateway_before(server, mode="exact", **settings) as gateway, engine_client() as http:
        made = Bench(gateway, server, http, await generated(http, server.url))
        async with made.agents:
            yield made


async def unheard(session: Session) -> None:
    """Until the gateway knows that the client of the session's call has left."""
    (call,) = session.originals._all()[-1:]
    await eventually(lambda: call.answers_retry(said=False), "the gateway knows that the client left")


async def begin(
    on: Bench, dialect: Dialect, said: dict[str, Any], *, stream: bool = True, **options: Any
) -> tuple[SumAgent, Session]:
    """After one turn, about to ask for an answer of as many tokens as ``said`` says."""
    agent, session = await on.agent(dialect, **options)
    await agent.turn(stream=stream)
    agent.speak()
    agent.extra, agent.max_tokens = said, said["min_tokens"] + 10
    return agent, session


async def test_clients_that_leave_in_mid_stream_and_ask_again(smollm2_server: VllmServer) -> None:
    """The same bytes get the same answer: nothing is sampled a second time."""

    async def leave(agent: SumAgent, session: Session) -> None:
        await agent.leave()
        await unheard(session)

    async def end(on: Bench, agent: SumAgent, session: Session) -> Trajectory:
        agent.keep(await agent.ask(stream=True))
        agent.extra = {}
        await agent.turn(stream=False)
        return await on.seal(session)

    async with bench(smollm2_server, retry_grace_s=600) as on:
        begun = await asyncio.gather(*(begin(on, dialect, LONG) for dialect in DIALECTS))
        with smollm2_server.brake.on():
            await asyncio.gather(*(leave(agent, session) for agent, session in begun))
        held = await asyncio.gather(*(end(on, agent, session) for agent, session in begun))
        assert sum(made.ledger.sampled for made in held) == await on.sampled()
        for made in held:
            assert (made.ledger.trained, made.metadata["rejoined_calls"]) == (made.ledger.sampled, 1)
            assert len(made.turns) == 3
            await on.confirmed(made)


async def test_clients_that_leave_for_good(smollm2_server: VllmServer) -> None:
    """Their generation ends, and every token the engine sampled for it is in the ledger, trained by nothing."""
    async with bench(smollm2_server, retry_grace_s=1) as on:
        kinds = [(dialect, stream) for dialect in DIALECTS for stream in (True, False)]
        begun = await asyncio.gather(
            *(begin(on, dialect, {"min_tokens": 400}, stream=stream) for dialect, stream in kinds)
        )
        streamed = [session for (_, session), (_, stream) in zip(begun, kinds, strict=True) if stream]
        with smollm2_server.brake.on():
            all_run = asyncio.Event()
            leaving = [
                asyncio.create_task(agent.leave(when=all_run) if stream else agent.ask(stream=False))
                for (agent, _), (_, stream) in zip(begun, kinds, strict=True)
            ]
            await smollm2_server.brake.under_way(len(kinds))
            await eventually(lambda: all(map(heard, streamed)), "tokens of each stream have come")
            all_run.set()
            for task, (_, stream) in zip(leaving, kinds, strict=True):
                if not stream:
                    assert task.cancel(), task
            left = await asyncio.gather(*leaving, return_exceptions=True)
            assert [type(how) for how in left] == [type(None), asyncio.CancelledError] * len(DIALECTS), left
            for _, session in begun:
                await eventually(lambda session=session: not session.calls, "the call has ended", within_s=60)
        held = [await on.seal(session) for _, session in begun]
        ledger = await on.ledger()
        sampled = sum(made.ledger.sampled for made in held)
        print(f"{sampled} tokens told, {ledger['cut_off']} cut off, {ledger['engine']} sampled")
        assert sampled == ledger["captured"] == ledger["engine"] - ledger["cut_off"]
        for made, (_, stream) in zip(held, kinds, strict=True):
            assert [turn.incomplete for turn in made.turns] == [None, "client disconnected"]
            lost = len(made.turns[1].completion_token_ids)
            assert (made.ledger.lost, made.ledger.trained) == (lost, made.ledger.sampled - lost)
            assert (lost > 0) == stream  # of an answer that did not stream, nothing is told before its end
            await on.confirmed(made)


@pytest.mark.parametrize("says", [True, False])
async def test_sdks_that_ask_again_after_a_broken_connection(smollm2_server: VllmServer, says: bool) -> None:
    """With and without the header that says it is a retry: the call in flight is joined."""

    async def begin_cut(on: Bench, dialect: Dialect) -> tuple[SumAgent, Session, CuttingProxy]:
        proxy = await on.agents.enter_async_context(CuttingProxy(on.gateway.url))
        omitted = (anthropic if dialect == "messages" else openai).Omit()
        headers = {} if says else {"x-stainless-retry-count": omitted}
        return *await begin(on, dialect, LONG, proxy=proxy, max_retries=4, **headers), proxy

    async def end(on: Bench, agent: SumAgent, session: Session, proxy: CuttingProxy) -> Trajectory:
        if says:  # an answer that is lost after the gateway sent it; without the header it is an ask of its own
            agent.extra, agent.max_tokens = {}, 40
            agent.speak()
            proxy.lose_answers = 1
            agent.keep(await agent.ask(stream=True))
        return await on.seal(session)

    async with bench(smollm2_server, retry_grace_s=600) as on:
        begun = await asyncio.gather(*(begin_cut(on, dialect) for dialect in DIALECTS))
        with smollm2_server.brake.on():
            asking = [asyncio.create_task(agent.ask(stream=False)) for agent, _, _ in begun]
            await smollm2_server.brake.under_way(len(begun))
            for _, _, proxy in begun:
                proxy.cut()
            await eventually(lambda: all(s.rejoined_calls for _, s, _ in begun), "the calls in flight are joined")
            assert not any(task.done() for task in asking), asking
        for (agent, _, _), task in zip(begun, asking, strict=True):
            agent.keep(await task)
        held = await asyncio.gather(*(end(on, *each) for each in begun))
        assert sum(made.ledger.sampled for made in held) == await on.sampled()
        for made in held:
            assert (made.ledger.trained, made.metadata["rejoined_calls"]) == (made.ledger.sampled, 1 + says)
            await on.confirmed(made)


@contextmanager
def other_weights(server: VllmServer, folder: Path) -> Iterator[Path]:
    """A checkpoint to load; the server has its own again afterwards."""
    write_other_weights(server.model_path, folder / "v2")
    try:
        yield folder / "v2"
    finally:
        httpx.post(f"{server.url}/pause", params={"mode": "abort"}, timeout=300).raise_for_status()
        _reload(server.url, server.model_path)
        httpx.post(f"{server.url}/resume", timeout=300).raise_for_status()


def _reload(url: str, folder: Path) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    httpx.post(f"{url}/collective_rpc", json=body, timeout=300).raise_for_status()


async def test_weights_that_change_in_mid_turn(smollm2_server: VllmServer, tmp_path: Path) -> None:
    """Pause, abort, load, open: every turn goes on whole under both versions, and each of its tokens has the log-prob
    of the weights that sampled it."""

    async def end(agent: SumAgent, *, stream: bool) -> None:
        agent.keep(await agent.ask(stream=stream))
        agent.extra, agent.max_tokens = {}, 40
        await agent.turn(stream=stream)

    server = smollm2_server
    async with bench(server) as on:
        await _gate(on, "open", policy_version=1)
        kinds = [(dialect, stream) for dialect in CHATS for stream in (True, False)]
        begun = await asyncio.gather(*(begin(on, dialect, {"min_tokens": 80}) for dialect, _ in kinds))
        with other_weights(server, tmp_path) as folder:
            pairs = zip(begun, kinds, strict=True)
            with server.brake.on():
                going = [asyncio.create_task(end(agent, stream=stream)) for (agent, _), (_, stream) in pairs]
                await server.brake.under_way(len(going))
                await _gate(on, "pause", timeout_s=0)
                (await on.http.post(f"{server.url}/pause", params={"mode": "abort"})).raise_for_status()
                await eventually(lambda: _held(on, len(going)), "every call waits", within_s=120)
            await asyncio.to_thread(_reload, server.url, folder)
            (await on.http.post(f"{server.url}/resume")).raise_for_status()
            await _gate(on, "open", policy_version=2)
            await asyncio.gather(*going)
            held = [await on.seal(session) for _, session in begun]
            assert sum(made.ledger.trained for made in held) == await on.sampled()
            rows = [made.sequences[0].token_ids.tolist() for made in held]
            new = [await prompt_logprobs(on.http, server.url, server.model, ids) for ids in rows]
        old = [await prompt_logprobs(on.http, server.url, server.model, ids) for ids in rows]
        for made, by_new, by_old in zip(held, new, old, strict=True):
            _check_versions(made, by_new, by_old)


async def _gate(on: Bench, what: str, **said: Any) -> None:
    (await on.gateway.http.post(f"/v1/pools/default/{what}", json=said)).raise_for_status()


async def _held(on: Bench, calls: int) -> bool:
    return bool((await on.gateway.http.get("/v1/pools/default")).json()["held"] == calls)


def _check_versions(made: Trajectory, by_new: list[float], by_old: list[float]) -> None:
    assert (made.mode, made.incomplete, len(made.sequences)) == ("exact", None, 1), made.metadata
    assert [(t.policy_version_start, t.policy_version_end) for t in made.turns] == [(1, 1), (1, 2), (2, 2)]
    before, during, after = made.turns
    assert max(turn_differences(before, by_old)) <= LARGEST
    assert max(turn_differences(after, by_new)) <= LARGEST
    old, new = turn_differences(during, by_old), turn_differences(during, by_new)
    cut = next(k for k, d in enumerate([*old, 1.0]) if d > LARGEST)
    print(f"{len(old)} tokens, cut at {cut}, |d| {max(old[:cut]):.1e} {max(new[cut:]):.1e}")
    assert 0 < cut < len(old)
    assert max(new[cut:]) <= LARGEST < max(new[:cut])
