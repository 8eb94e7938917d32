"""Evidence that contradicts itself: the agent is served, the session is handed out incomplete with the reason."""

from __future__ import annotations

from array import array
from typing import Any

import orjson
import pytest

from rollway_gateway.tree import cut, uncut
from rollway_wire.codec import dump_packed, load_packed, load_trajectory, trajectory_tree
from rollway_wire.problems import ContractViolation
from rollway_wire.tokens import Turn
from tests.gateway.conftest import RunningGateway
from tests.kit.scripted_engine import Reply, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]


def _choice(**said: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}] * 2}
    message = {"role": "assistant", "content": "xx"}
    whole = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", "token_ids": [5, 6]}
    return {**whole, **said}


def _answer(*choices: dict[str, Any], usage: Any = None, prompt: Any = (1, 2, 3)) -> bytes:
    usage = usage or {"prompt_tokens": 3, "completion_tokens": 2 * len(choices), "total_tokens": 0}
    head = {"id": "chatcmpl-x", "object": "chat.completion", "created": 1, "model": "m"}
    return orjson.dumps({**head, "choices": choices, "usage": usage, "prompt_token_ids": prompt})


CASES = {
    "an id below 0": (_answer(_choice(token_ids=[5, -6])), "below 0"),
    "a prompt id below 0": (_answer(_choice(), prompt=[1, -2, 3]), "below 0"),
    "more tokens than the usage": (
        _answer(_choice(), usage={"prompt_tokens": 3, "completion_tokens": 1}),
        "2 completion tokens captured, the engine's usage says 1",
    ),
    "fewer tokens than the usage": (
        _answer(_choice(), usage={"prompt_tokens": 3, "completion_tokens": 9}),
        "2 completion tokens captured, the engine's usage says 9",
    ),
    "another prompt than the usage": (
        _answer(_choice(), usage={"prompt_tokens": 4, "completion_tokens": 2}),
        "3 prompt tokens captured, the engine's usage says 4",
    ),
    "a usage that is no number": (
        _answer(_choice(), usage={"prompt_tokens": "3", "completion_tokens": "2"}),
        "the engine reported no usage",
    ),
    "a usage below 0": (_answer(_choice(), usage={"prompt_tokens": 3, "completion_tokens": -2}), "no usage"),
    "two choices with one index": (_answer(_choice(), _choice()), "two choices have the index 0"),
    "a log-prob too few": (_answer(_choice(logprobs={"content": [{"logprob": -1.0}]})), "2 token ids but 1 log-probs"),
    "an id that is none": (_answer(_choice(token_ids=[5, "6"])), "0 completion tokens captured"),
    "an id of 40 bits": (_answer(_choice(token_ids=[5, 1 << 40])), "0 completion tokens captured"),
    "a log-prob above 0": (_answer(_choice(logprobs={"content": [{"logprob": 0.5}] * 2})), "above 0"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_contradiction_costs_the_turn_and_the_session_never_the_answer(
    gateway: RunningGateway, engine: ScriptedEngine, case: str
) -> None:
    raw, reason = CASES[case]
    ticket = await gateway.open()
    engine.script(Reply("good"), Reply(raw=raw))
    for _ in range(2):
        body = {"model": "m", "messages": HI}
        answer = await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
    made = await gateway.seal(ticket["session_id"])
    assert made.incomplete is not None and reason in made.incomplete
    good, *bad = made.turns
    assert good.incomplete is None and bad
    assert all(turn.incomplete is not None and reason in turn.incomplete for turn in bad)
    assert made.ledger.trained == 5 and made.ledger.lost == made.ledger.sampled - 5 > 0


async def test_a_choice_that_ends_twice_in_a_stream_is_incomplete(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    head = {"id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    one = {**head, "choices": [{**_choice(), "delta": {"content": "xx"}}], "prompt_token_ids": [1, 2, 3]}
    usage = {**head, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    events = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in (one, one, usage)) + b"data: [DONE]\n\n"
    engine.script(Reply(raw=events, raw_type="text/event-stream"))
    ticket = await gateway.open()
    body = {"model": "m", "messages": HI, "stream": True}
    assert (await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)).status_code == 200
    made = await gateway.seal(ticket["session_id"])
    assert made.incomplete is not None and "ended twice" in made.incomplete and made.sequences == ()


async def test_a_session_that_cannot_be_cut_is_handed_out_with_its_turns(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    """Two turns with one id: nothing the engine can do, so put there by hand."""
    ticket = await gateway.open()
    body = {"model": "m", "messages": HI}
    assert (await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)).status_code == 200
    session = gateway.inside.store.find(ticket["session_id"])
    assert session is not None
    session.records.append(session.records[0])
    for made in (await gateway.trajectory(ticket["session_id"]), await gateway.seal(ticket["session_id"])):
        assert made.incomplete is not None and "two turns share a turn_id" in made.incomplete
        assert (len(made.turns), made.sequences, made.metadata["calls"]) == (2, (), 1)
        assert (made.ledger.sampled, made.ledger.lost) == (6, 6)


async def test_a_call_that_cannot_be_recorded_is_a_loud_error_and_not_a_call_for_ever(
    gateway: RunningGateway, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours: the session is spoiled, says so, and can be sealed."""

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug")

    ticket = await gateway.open()
    monkeypatch.setattr("rollway_gateway.call.make_record", broken)
    body = {"model": "m", "messages": HI}
    assert (await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)).status_code == 500
    monkeypatch.undo()
    assert (await gateway.http.post(ticket["base_url"] + "/chat/completions", json=body)).status_code == 200
    assert gateway.inside.pools["default"].in_flight == 0
    made = await gateway.seal(ticket["session_id"])
    assert made.incomplete is not None and "could not be recorded: RuntimeError: a bug" in made.incomplete
    assert len(made.turns) == 1


def test_what_is_not_cut_survives_the_codec_whatever_its_turns_are() -> None:
    turn = Turn(
        turn_id="t", call_id="c", index=0, prompt_token_ids=array("i", [1]), completion_token_ids=array("i", [2]),
        logprobs=array("f", [-1.0]), finish_reason="stop", policy_version_start=0, policy_version_end=0,
        started_at=0.0, ended_at=1.0,
    )  # fmt: skip
    with pytest.raises(ContractViolation):
        cut("s", [turn, turn])
    made = uncut("s", [turn, turn], "why", lost_tokens=-3, metadata={"a": 1})
    assert load_trajectory(load_packed(dump_packed(trajectory_tree(made)))) == made
    assert (made.ledger.sampled, made.ledger.lost, made.incomplete) == (2, 2, "the evidence contradicts itself: why")
