"""One finished rollout becomes rows, or a reason: never a cut, padded or guessed row."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from rollway_driver.verl.rows import Refusal, Session, cut_row, read_session, score
from rollway_wire.failures import FailureType
from rollway_wire.routing import RoutedExperts
from tests.driver_verl.made import result, routed_trajectory, rules, sequence, trajectory


def test_a_row_is_cut_before_the_first_trained_token() -> None:
    row = cut_row(sequence([(3, 0), (2, 1), (4, 0), (1, 1)]))
    assert list(row.prompt_ids) == [10, 11, 12]
    assert list(row.response_ids) == list(range(13, 20))
    assert list(row.response_mask) == [1, 1, 0, 0, 0, 0, 1]
    assert row.logprobs == array("f", [-0.5, -0.5, 0, 0, 0, 0, -0.5])
    assert row.length == 10


def test_what_follows_the_last_trained_token_is_left_out() -> None:
    """A row must end with a trained token: verl puts the score on the last one."""
    row = cut_row(sequence([(2, 0), (2, 1), (5, 0)]))
    assert list(row.response_mask) == [1, 1]


def test_log_probs_are_the_captured_float32_bits() -> None:
    s = sequence([(1, 0), (3, 1)])
    s.logprobs[2] = -0.1234567
    assert cut_row(s).logprobs.tobytes() == s.logprobs[1:].tobytes()


def test_a_session_of_several_sequences_keeps_their_order() -> None:
    """The last row is the scored one."""
    t = trajectory(sequence([(2, 0), (2, 1)]), sequence([(6, 0), (3, 1)]))
    session = read_session(result(rewards=[0.25]), t, rules())
    assert isinstance(session, Session)
    assert [r.length for r in session.rows] == [4, 9]
    assert (session.score, session.trained_tokens, session.turns) == (0.25, 5, 2)


@pytest.mark.parametrize(("rule", "expected"), [("last", 2.0), ("sum", 3.5)])
def test_a_list_of_rewards_becomes_one_score_by_the_rule(rule: str, expected: float) -> None:
    assert score([1.0, 0.5, 2.0], rule) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", list(FailureType))
def test_a_failed_rollout_gives_no_row_and_keeps_its_type(failure: FailureType) -> None:
    refused = read_session(result(failure=failure), trajectory(sequence([(1, 0), (1, 1)])), rules())
    assert isinstance(refused, Refusal)
    assert (refused.type, refused.message) == (failure.value, "gone")


def test_a_success_without_a_trajectory_trains_nothing() -> None:
    for missing in (None, trajectory()):
        refused = read_session(result(), missing, rules())
        assert isinstance(refused, Refusal) and refused.type == "no_turns"


def test_a_success_without_rewards_is_a_broken_contract() -> None:
    refused = read_session(result(rewards=[]), trajectory(sequence([(1, 0), (1, 1)])), rules())
    assert isinstance(refused, Refusal) and refused.type == "contract_error"


def test_an_incomplete_capture_trains_nothing() -> None:
    t = trajectory(sequence([(1, 0), (1, 1)]), incomplete="turn 2 has no log-probs")
    refused = read_session(result(), t, rules())
    assert isinstance(refused, Refusal) and (refused.type, refused.message) == (
        "incomplete_capture",
        "turn 2 has no log-probs",
    )


@pytest.mark.parametrize(("length", "fits"), [(100, True), (101, False)])
def test_a_row_over_the_budget_is_refused_whole(length: int, fits: bool) -> None:
    ended = read_session(result(), trajectory(sequence([(1, 0), (length - 1, 1)])), rules())
    assert isinstance(ended, Session) is fits
    if isinstance(ended, Refusal):
        assert ended.type == "over_budget" and "101 tokens" in ended.message and "max_response_length" in ended.message


def test_a_token_of_another_policy_version_refuses_the_rollout() -> None:
    s = sequence([(1, 0), (3, 1)], version=4)
    s.policy_versions[3] = 5
    refused = read_session(result(), trajectory(s), rules(policy_version=4))
    assert isinstance(refused, Refusal) and refused.type == "stale_policy" and "policy 5" in refused.message


def test_several_sequences_need_grpo() -> None:
    t = trajectory(sequence([(2, 0), (2, 1)]), sequence([(6, 0), (3, 1)]))
    refused = read_session(result(), t, rules(group_relative=False))
    assert isinstance(refused, Refusal) and refused.type == "several_sequences"
    one = read_session(result(), trajectory(sequence([(2, 0), (2, 1)])), rules(group_relative=False))
    assert isinstance(one, Session)


def test_a_session_says_how_much_of_it_was_exact_and_why_not() -> None:
    """As the gateway counted; where it says nothing, nothing is claimed."""
    plain = trajectory(sequence([(2, 0), (2, 1)]))
    exact = replace(plain, mode="exact", metadata={"fidelity": {"turns": 2, "exact": 2}})
    mirror = replace(plain, metadata={"fidelity": {"turns": 2, "exact": 1}, "mode_reason": "no tokenizer"})
    seen = [read_session(result(), t, rules()) for t in (exact, mirror, plain)]
    assert [(s.exact_turns, s.mirror_reason) for s in seen if isinstance(s, Session)] == [
        (2, None),
        (1, "no tokenizer"),
        (0, "not said"),
    ]


def test_where_routing_is_replayed_a_row_brings_a_row_of_experts_for_each_token_but_its_last() -> None:
    t = routed_trajectory([(3, 0), (4, 1)])
    session = read_session(result(), t, rules(routing_replay=True))
    assert isinstance(session, Session)
    (row,) = session.rows
    assert row.routed_experts is not None
    assert (row.routed_experts.layers, row.routed_experts.top_k, row.routed_experts.rows) == (3, 2, 6)
    assert list(row.routed_experts.data) == list(range(36))


def test_what_follows_the_last_trained_token_brings_no_experts_either() -> None:
    row = cut_row(sequence([(2, 0), (2, 1), (5, 0)]), RoutedExperts(layers=1, top_k=1, data=array("B", range(8))))
    assert row.length == 4
    assert row.routed_experts is not None and list(row.routed_experts.data) == [0, 1, 2]


def test_without_replay_a_row_brings_none() -> None:
    session = read_session(result(), routed_trajectory([(3, 0), (4, 1)]), rules())
    assert isinstance(session, Session) and session.rows[0].routed_experts is None


@pytest.mark.parametrize("why", [None, "turn t1: the engine returned no routed experts"])
def test_a_session_with_a_row_unrouted_is_refused_where_routing_is_replayed(why: str | None) -> None:
    whole = routed_trajectory([(3, 0), (4, 1)])
    t = replace(whole, sequences=(replace(whole.sequences[0], routing=None, unrouted=why),))
    refused = read_session(result(), t, rules(routing_replay=True))
    assert isinstance(refused, Refusal) and refused.type == "not_routed"
    assert (why or "is the worker registered with routed_experts?") in refused.message
    assert isinstance(read_session(result(), t, rules()), Session)
