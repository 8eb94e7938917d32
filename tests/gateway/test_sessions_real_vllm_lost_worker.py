"""A real vLLM server is killed in the middle of turns: their sessions go on at the other one, whose counter shows
exactly the tokens that were captured from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from rollway_wire.tokens import Trajectory
from tests.gateway.before_vllm import gateway_before, heard
from tests.kit.deadlines import eventually
from tests.kit.engine_word import LARGEST, generated, largest_difference, prompt_logprobs, worker_ledger
from tests.kit.sum_agents import AnswerBroken, Dialect, SumAgent, make_agent
from tests.kit.vllm_server import VllmServer, engine_client, running_vllm

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

DIALECTS: tuple[Dialect, ...] = ("chat", "responses", "messages", "completions")
_WAYS = [(dialect, stream) for dialect in DIALECTS for stream in (True, False)]
WAYS = _WAYS + _WAYS[1:] + _WAYS[:1]
"""Twice: sessions go to the two servers in turn, so each has every way."""
LONG = 150
"""Tokens of the answers that are cut; their engine's brake is on until then."""


@pytest.fixture
def victim(vllm_server: VllmServer, tmp_path: Path) -> Iterator[VllmServer]:
    """A second server of the same model."""
    with running_vllm(tmp_path) as server:
        yield server


async def test_sessions_go_on_when_their_server_is_killed(vllm_server: VllmServer, victim: VllmServer) -> None:
    async with gateway_before(vllm_server, victim, mode="exact") as gateway, engine_client() as http:
        before = await generated(http, vllm_server.url)
        agents, ids = [], []
        for dialect, stream in WAYS:
            ticket = await gateway.open()
            ids.append(ticket["session_id"])
            agents.append(make_agent(dialect, ticket["base_url"], vllm_server.model_path))
            await agents[-1].turn(stream=stream)
        homes = [(await gateway.trajectory(i)).turns[0].worker for i in ids]
        assert {(w, h) for w, h in zip(WAYS, homes, strict=True)} == {
            (way, str(server.pid)) for way in WAYS for server in (vllm_server, victim)
        }
        cut = [gateway.inside.store.get(i) for i, home in zip(ids, homes, strict=True) if home == str(victim.pid)]
        streamed = [session for session, (_, stream) in zip(cut, _at(victim, homes), strict=True) if stream]
        killed = asyncio.Event()
        with victim.brake.on():
            going = [asyncio.create_task(_go_on(a, killed, stream=s)) for a, (_, s) in zip(agents, WAYS, strict=True)]
            await victim.brake.under_way(len(cut))
            await eventually(lambda: all(map(heard, streamed)), "tokens of each stream have come")
            victim.kill()
        killed.set()
        await asyncio.gather(*going)
        held = [await gateway.seal(i) for i in ids]
        await asyncio.gather(*(agent.close() for agent in agents))
        ledger = await worker_ledger(gateway.http, vllm_server.url)
        assert (ledger["closes"], ledger["cut_off"], ledger["foreign"]) == (True, 0, 0), ledger
        assert await generated(http, vllm_server.url) - before == ledger["captured"]
        for made, home, way in zip(held, homes, WAYS, strict=True):
            _check(made, way, killed=home == str(victim.pid))
            assert made.turns[-1].worker == str(vllm_server.pid) or home != str(victim.pid)
            (row,) = made.sequences
            theirs = await prompt_logprobs(http, vllm_server.url, vllm_server.model, row.token_ids.tolist())
            assert largest_difference(row, theirs) <= LARGEST


async def _go_on(agent: SumAgent, killed: asyncio.Event, *, stream: bool) -> None:
    """A long answer, asked for again where it breaks, and another turn after that."""
    agent.speak()
    agent.extra, agent.max_tokens = {"min_tokens": LONG}, LONG
    shown = None
    while shown is None:
        with contextlib.suppress(openai.OpenAIError, anthropic.AnthropicError, AnswerBroken):
            shown = await agent.ask(stream=stream)
    agent.keep(shown)
    agent.extra, agent.max_tokens = {}, 40
    await killed.wait()
    await agent.turn(stream=stream)


def _at(server: VllmServer, homes: list[str | None]) -> list[tuple[Dialect, bool]]:
    """The ways of the sessions there."""
    return [way for way, home in zip(WAYS, homes, strict=True) if home == str(server.pid)]


def _check(made: Trajectory, way: tuple[Dialect, bool], *, killed: bool) -> None:
    """A stream goes on from its tokens where its ids can be prompted with, in the same turn; an answer of which the
    agent had nothing is asked for elsewhere. The stream of a text completion breaks off: the agent asks again."""
    again = killed and way == ("completions", True)
    flaws = [turn.incomplete for turn in made.turns]
    assert [flaw is not None for flaw in flaws] == ([False, True, False, False] if again else [False] * 3)
    assert (made.incomplete, len(made.sequences)) == (None, 1), made.metadata
    lost = sum(len(turn.completion_token_ids) for turn in made.turns if turn.incomplete)
    assert made.ledger.trained + made.ledger.lost == made.ledger.sampled
    assert (lost > 0) is again
    assert made.ledger.lost >= lost
