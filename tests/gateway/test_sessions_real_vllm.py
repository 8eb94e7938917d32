"""Whole sessions before a real vLLM server with a real model, in four dialects: agents that use a tool, 2 to 20 turns.

Every turn is exact, a session is one sequence, the engine itself gives each trained id the log-prob that was captured,
and it has sampled exactly the tokens that the ledgers hold. All sessions run at once, as rollouts do.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Any

import pytest

from rollway_wire.tokens import NO_VERSION, Ledger, Sequence, Trajectory
from tests.gateway.before_vllm import gateway_before
from tests.gateway.conftest import RunningGateway
from tests.kit.engine_word import (
    LARGEST,
    generated,
    prompt_logprobs,
    turn_differences,
    worker_ledger,
)
from tests.kit.sum_agents import TWO_CALLS, Dialect, SumAgent, make_agent
from tests.kit.sum_agents.completions import load_tokenizer
from tests.kit.vllm_server import VllmServer, engine_client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

VERSION = 3


@dataclass(frozen=True)
class Case:
    dialect: Dialect
    turns: int
    streams: tuple[bool, ...]
    """Whether a turn streams, over and over."""
    options: tuple[tuple[str, Any], ...] = ()
    """Of the agent."""

    @property
    def name(self) -> str:
        how = {(False,): "whole", (True,): "stream"}.get(self.streams, "both")
        return "-".join([self.dialect, str(self.turns), how, *(f"{k}={v}" for k, v in self.options)])

    def forces(self, turn: int) -> bool:
        """The turn is made to call twice at once, by the engine's grammar: its log-probs are not the policy's alone."""
        return turn == 1 and self.turns in (5, 12)


WHOLE, STREAM, BOTH = (False,), (True,), (True, False)
CASES = [
    Case("chat", 2, STREAM), Case("chat", 5, WHOLE), Case("chat", 20, STREAM),
    Case("completions", 2, STREAM), Case("completions", 5, WHOLE), Case("completions", 12, BOTH),
    Case("responses", 2, WHOLE), Case("responses", 5, STREAM), Case("responses", 12, BOTH, (("by_id", True),)),
    Case("messages", 2, STREAM), Case("messages", 12, WHOLE), Case("messages", 20, BOTH),
]  # fmt: skip
AS_TEXT = Case("completions", 5, BOTH, (("ids", False),))
"""A prompt that is a string: each turn's prompt is tokenised anew."""


@dataclass
class Held:
    """A session after its end."""

    agent: SumAgent
    made: Trajectory
    theirs: list[list[float]]
    """The engine's own log-probs, by sequence."""


@dataclass
class Run:
    sessions: dict[Case, Held]
    sampled: int
    """By the engine's counter."""


@pytest.fixture(scope="module")
def run(smollm2_server: VllmServer) -> Run:
    return asyncio.run(_run(smollm2_server))


async def _run(server: VllmServer) -> Run:
    async with gateway_before(server, mode="exact") as gateway, engine_client() as http:
        await gateway.http.post("/v1/pools/default/open", json={"policy_version": VERSION})
        before, began = await generated(http, server.url), time.monotonic()
        cases = [*CASES, AS_TEXT]
        held = dict(zip(cases, await asyncio.gather(*(_hold(gateway, server, c) for c in cases)), strict=True))
        sampled = await generated(http, server.url) - before
        ledger = await worker_ledger(gateway.http, server.url)
        assert (ledger["captured"], ledger["engine"], ledger["cut_off"]) == (sampled, sampled, 0), ledger
        asked = time.monotonic()
        for found in held.values():
            ids = [row.token_ids.tolist() for row in found.made.sequences]
            found.theirs = [await prompt_logprobs(http, server.url, server.model, i) for i in ids]
        print(f"\n{sampled} tokens sampled in {asked - began:.0f} s, confirmed in {time.monotonic() - asked:.0f} s")
        return Run(held, sampled)


async def _hold(gateway: RunningGateway, server: VllmServer, case: Case) -> Held:
    ticket = await gateway.open()
    agent = make_agent(case.dialect, ticket["base_url"], server.model_path, **dict(case.options))
    try:
        for turn in range(case.turns):
            agent.extra, agent.max_tokens = (TWO_CALLS, 80) if case.forces(turn) else ({}, 40)
            await agent.turn(stream=case.streams[turn % len(case.streams)])
    finally:
        await agent.close()
    return Held(agent, await gateway.seal(ticket["session_id"]), [])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_session_is_exact_and_the_engine_confirms_it(run: Run, smollm2_server: VllmServer, case: Case) -> None:
    held = run.sessions[case]
    made, agent = held.made, held.agent
    assert (made.incomplete, [t.incomplete for t in made.turns]) == (None, [None] * case.turns)
    assert (made.mode, made.metadata["branches"]) == ("exact", [])
    assert made.metadata["fidelity"] == {"turns": case.turns, "exact": case.turns}
    assert made.metadata["drift_events"] == []
    (row,) = made.sequences
    _check_row(row, made)
    for turn, shown in zip(made.turns, agent.shown, strict=True):
        assert (len(turn.prompt_token_ids), len(turn.completion_token_ids)) == (
            shown.prompt_tokens, shown.completion_tokens,
        )  # fmt: skip
    _check_order(load_tokenizer(smollm2_server.model_path).decode(row.token_ids.tolist()), agent.said)
    free = [turn for number, turn in enumerate(made.turns) if not case.forces(number)]
    difference = max(max(turn_differences(turn, held.theirs[0])) for turn in free)
    said = sum(len(turn.completion_token_ids) for turn in free)
    calls = [len(shown.calls) for shown in agent.shown]
    likely = math.exp(sum(sum(turn.logprobs) for turn in free) / said)
    print(
        f"{case.name}: {len(row.token_ids)} tokens, {said} of {row.trained_tokens} freely sampled (mean p {likely:.2f})"
    )
    print(f"    calls by turn {calls}, largest difference of log-probs {difference:.1e}")
    assert difference <= LARGEST


def _check_row(row: Sequence, made: Trajectory) -> None:
    """The row is the last prompt and answer; each turn's ids, log-probs and version stand in it, and nothing else."""
    mask, logprobs, versions = [0] * len(row.token_ids), [0.0] * len(row.token_ids), [NO_VERSION] * len(row.token_ids)
    for turn in made.turns:
        start, size = len(turn.prompt_token_ids), len(turn.completion_token_ids)
        assert row.token_ids[:start] == turn.prompt_token_ids
        assert row.token_ids[start : start + size] == turn.completion_token_ids
        mask[start : start + size] = [1] * size
        logprobs[start : start + size] = turn.logprobs
        versions[start : start + size] = [VERSION] * size
    assert (row.loss_mask.tolist(), row.logprobs.tolist(), row.policy_versions.tolist()) == (mask, logprobs, versions)
    assert len(row.token_ids) == start + size
    assert made.ledger == Ledger(sampled=sum(mask), trained=sum(mask))


def _check_order(text: str, said: list[str]) -> None:
    """What the agent said is what the model read, once each and in order."""
    at = text.index("What is 7 plus 2?")
    for words in said:
        at = text.index(words, at) + len(words)


def test_the_engine_sampled_what_the_ledgers_hold_and_nothing_else(run: Run) -> None:
    made = [held.made for held in run.sessions.values()]
    assert sum(m.ledger.sampled for m in made) == run.sampled
    assert sum(m.ledger.trained for m in made) == run.sampled


def test_the_model_called_tools_one_and_several_at_once(run: Run) -> None:
    """Otherwise the sessions above prove nothing of them."""
    for dialect in ("chat", "completions", "responses", "messages"):
        shown = [s for case, held in run.sessions.items() if case.dialect == dialect for s in held.agent.shown]
        assert sum(bool(s.calls) for s in shown) >= len(shown) / 4
        assert any(len(s.calls) > 1 for s in shown)


def test_a_prompt_given_as_a_string_is_trained_once_however_it_is_tokenised(run: Run) -> None:
    """Where a string is tokenised otherwise than it was sampled, the turn begins another sequence: told as drift."""
    held = run.sessions[AS_TEXT]
    made = held.made
    assert (made.incomplete, [t.incomplete for t in made.turns]) == (None, [None] * AS_TEXT.turns)
    assert len(made.sequences) == 1 + made.metadata["drift"]
    assert made.ledger.trained == made.ledger.sampled == sum(row.trained_tokens for row in made.sequences)
    theirs_of = {t: theirs for row, theirs in zip(made.sequences, held.theirs, strict=True) for t in row.turn_ids}
    free = [turn for number, turn in enumerate(made.turns) if not AS_TEXT.forces(number)]
    assert max(max(turn_differences(turn, theirs_of[turn.turn_id])) for turn in free) <= LARGEST
