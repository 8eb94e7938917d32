"""What a saved result and its trajectory are worth: the table of outcomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollway_dispatcher.step import Outcome
from rollway_dispatcher.verdict import judge, read_rewards
from rollway_wire.codec import dump_packed, trajectory_tree
from rollway_wire.failures import FailureType
from tests.dispatcher.scripted_gateway import trajectory

SESSION = "s" * 36
SAVED = {"status_code": 200, "stop_reason": "end_turn", "input_id": "g", "s3_bucket": "b", "result_key": "k"}


def packed(turns: int = 1, incomplete: str | None = None, session_id: str = SESSION) -> bytes:
    return dump_packed(trajectory_tree(trajectory(session_id, turns, incomplete)))


def judged(saved: Any, tokens: bytes | None, *, captured: bool = True, require_rewards: bool = True) -> Outcome:
    raw = saved if isinstance(saved, bytes) else json.dumps(saved).encode()
    return judge(raw, tokens, session_id=SESSION, captured=captured, require_rewards=require_rewards)


@pytest.mark.parametrize(
    ("rewards", "expected"), [(1, [1.0]), (0.25, [0.25]), ([0, 1.5], [0.0, 1.5]), (-3, [-3.0]), ([0], [0.0])]
)
def test_a_number_or_a_list_of_numbers_is_a_reward(rewards: Any, expected: list[float]) -> None:
    outcome = judged(SAVED | {"rewards": rewards, "payload": {"secret": 1}, "extra": "kept"}, packed())
    assert outcome.failure is None
    assert outcome.rewards == expected
    assert outcome.result is not None
    assert "payload" not in outcome.result
    assert outcome.result["extra"] == "kept"


@pytest.mark.parametrize(
    "rewards", [None, "1.0", [], [1, None], float("nan"), [1.0, float("inf")], 10**400, True, {"r": 1}, [[1.0]]]
)
def test_what_is_not_a_finite_number_is_never_a_reward(rewards: Any) -> None:
    outcome = judged(SAVED | {"rewards": rewards}, packed())
    assert outcome.failure is not None
    assert outcome.failure.type is FailureType.AGENT_ERROR
    assert "rewards" in outcome.failure.message
    assert outcome.rewards is None
    assert outcome.rewardless
    assert judged(SAVED | {"rewards": rewards}, packed(), require_rewards=False).failure is None


def test_a_number_too_large_for_a_float_is_not_a_reward() -> None:
    with pytest.raises(ValueError, match="finite"):
        read_rewards(json.loads("1e999"))
    assert judged(json.dumps(SAVED)[:-1].encode() + b', "rewards": 1e999}', packed()).failure is not None


@pytest.mark.parametrize(
    ("saved", "tokens", "kind", "words"),
    [
        (SAVED | {"status_code": 500, "stop_reason": "boom", "traceback": "T"}, packed(), "agent_error", "boom"),
        (SAVED | {"status_code": 500, "stop_reason": "cancelled"}, packed(), "agent_died", "shut down"),
        (b"\xff\x00", packed(), "agent_error", "not JSON"),
        (b"[" * 100_000, packed(), "agent_error", "not JSON"),
        ([1], packed(), "agent_error", "not an object"),
        ({"rewards": 1}, packed(), "agent_error", "status_code"),
        (SAVED | {"rewards": 1}, packed(turns=0), "no_turns", "base_url"),
        (SAVED | {"rewards": 1}, packed(incomplete="turn 2 has no log-probs"), "incomplete_capture", "log-probs"),
        (SAVED | {"rewards": 1}, None, "incomplete_capture", "does not know"),
        (SAVED | {"rewards": 1}, b"garbage", "incomplete_capture", "RWPK"),
        (SAVED | {"rewards": 1}, packed(session_id="x" * 36), "incomplete_capture", "x" * 36),
    ],
)
def test_every_other_end_is_a_typed_failure_that_says_what_to_do(
    saved: Any, tokens: bytes | None, kind: str, words: str
) -> None:
    outcome = judged(saved, tokens)
    assert outcome.failure is not None
    assert outcome.failure.type == kind
    assert words in outcome.failure.message
    assert outcome.rewards is None
    assert outcome.trajectory == tokens


def test_the_agents_traceback_is_kept() -> None:
    outcome = judged(SAVED | {"status_code": 500, "stop_reason": "boom", "traceback": "Traceback: here"}, packed())
    assert outcome.failure is not None
    assert outcome.failure.traceback == "Traceback: here"


def test_without_capture_no_trajectory_is_due() -> None:
    outcome = judged(SAVED | {"rewards": 1}, None, captured=False)
    assert outcome.failure is None
    assert outcome.trajectory is None
