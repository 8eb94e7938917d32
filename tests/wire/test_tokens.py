"""Turns, sequences, ledgers: a value that exists is one a trainer may use; the rest cannot be made or read."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollway_wire import codec
from rollway_wire.problems import BadRequest, ContractViolation
from rollway_wire.tokens import Ledger, Sequence, Turn, are_usual_logprobs
from tests.wire.examples import sequence, trajectory, turn

BAD_TURNS: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt_token_ids": array("i")},
    "nothing sampled": {"completion_token_ids": array("i"), "logprobs": array("f")},
    "a log-prob missing": {"logprobs": array("f", [-0.25])},
    "a log-prob too many": {"logprobs": array("f", [-0.25, -1.5, -1.0])},
    "a log-prob is NaN": {"logprobs": array("f", [-0.25, math.nan])},
    "a log-prob is minus infinity": {"logprobs": array("f", [-0.25, -math.inf])},
    "a log-prob above 0": {"logprobs": array("f", [-0.25, 0.5])},
    "a negative id sampled": {"completion_token_ids": array("i", [36, -1])},
    "a negative id in the prompt": {"prompt_token_ids": array("i", [-1])},
    "ids as a list": {"prompt_token_ids": [1, 2]},
    "ids of another width": {"completion_token_ids": array("q", [36, 2])},
    "log-probs as float64": {"logprobs": array("d", [-0.25, -1.5])},
}
BAD_SEQUENCES: dict[str, dict[str, Any]] = {
    "empty": {"token_ids": array("i"), "loss_mask": array("B"), "logprobs": array("f"), "policy_versions": array("i")},
    "mask shorter": {"loss_mask": array("B", [0, 0, 0, 1])},
    "log-probs shorter": {"logprobs": array("f", [0.0])},
    "versions shorter": {"policy_versions": array("i", [3])},
    "starts with a trained token": {"loss_mask": array("B", [1, 0, 0, 1, 1])},
    "trains nothing": {"loss_mask": array("B", [0, 0, 0, 0, 0])},
    "mask of 2": {"loss_mask": array("B", [0, 0, 0, 2, 1])},
    "a log-prob is NaN": {"logprobs": array("f", [0, 0, 0, math.nan, -1])},
    "a log-prob above 0": {"logprobs": array("f", [0, 0, 0, 1, -1])},
    "a negative id": {"token_ids": array("i", [1, 2, -3, 4, 5])},
    "mask as list": {"loss_mask": [0, 0, 0, 1, 1]},
}


@pytest.mark.parametrize("what", sorted(BAD_TURNS))
def test_a_complete_turn_without_whole_evidence_cannot_be_made(what: str) -> None:
    with pytest.raises(ContractViolation):
        turn(**BAD_TURNS[what])


@pytest.mark.parametrize("what", ["no prompt", "nothing sampled", "a log-prob missing", "a log-prob is NaN"])
def test_the_same_turn_is_kept_for_inspection_when_it_says_it_is_incomplete(what: str) -> None:
    assert turn(**BAD_TURNS[what], incomplete="why").incomplete == "why"


@pytest.mark.parametrize("what", sorted(BAD_SEQUENCES))
def test_a_sequence_that_no_trainer_could_use_cannot_be_made(what: str) -> None:
    with pytest.raises(ContractViolation):
        sequence(**BAD_SEQUENCES[what])


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
@example([-9999.0])
@example([1e-30])
def test_usual_log_probs_are_told_without_looking_at_each(values: list[float]) -> None:
    if are_usual_logprobs(array("f", values)):
        assert all(math.isfinite(v) and -8192 < v < 1e-37 for v in values)


@given(st.lists(st.floats(-8191, 0, width=32), min_size=1))
def test_log_probs_that_policies_give_are_usual(values: list[float]) -> None:
    assert are_usual_logprobs(array("f", values))


def test_rounding_above_zero_is_still_a_log_prob() -> None:
    assert turn(logprobs=array("f", [1e-5, -1.5])).logprobs[0] > 0


def test_a_sequence_counts_its_prompt_and_what_it_trains() -> None:
    row = sequence(loss_mask=array("B", [0, 0, 1, 0, 1]))
    assert (row.prompt_length, row.trained_tokens) == (2, 2)


@given(st.lists(st.integers(0, 10**9), min_size=5, max_size=5), st.integers(-5, 5))
def test_a_ledger_exists_exactly_when_it_closes(buckets: list[int], error: int) -> None:
    names = ("trained", "context", "duplicate", "orphaned", "lost")
    fields = dict(zip(names, buckets, strict=True))
    if error == 0:
        assert Ledger(sampled=sum(buckets), **fields).trained == buckets[0]
    else:
        with pytest.raises(ContractViolation, match="does not close"):
            Ledger(sampled=sum(buckets) + error, **fields)


def test_a_ledger_with_a_negative_bucket_does_not_close_even_if_the_sum_does() -> None:
    with pytest.raises(ContractViolation):
        Ledger(sampled=0, trained=1, lost=-1)


logprob = st.floats(min_value=-100, max_value=0, width=32)
token = st.integers(0, 2**31 - 1)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    sampled = draw(st.lists(st.tuples(token, logprob), min_size=1, max_size=20))
    start = draw(st.integers(-1, 5))
    return turn(
        turn_id=draw(st.text(max_size=5)), prompt_token_ids=array("i", draw(st.lists(token, min_size=1, max_size=20))),
        completion_token_ids=array("i", [t for t, _ in sampled]), logprobs=array("f", [p for _, p in sampled]),
        policy_version_start=start, policy_version_end=start + draw(st.integers(0, 2)),
        finish_reason=draw(st.sampled_from([None, "stop", "length", "tool_calls"])),
    )  # fmt: skip


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    rest = draw(st.lists(st.tuples(token, st.booleans(), logprob), min_size=1, max_size=30))
    rest.append((draw(token), True, draw(logprob)))
    return Sequence(
        token_ids=array("i", [draw(token), *(t for t, _, _ in rest)]),
        loss_mask=array("B", [0, *(m for _, m, _ in rest)]),
        logprobs=array("f", [0.0, *(p if m else 0.0 for _, m, p in rest)]),
        policy_versions=array("i", [-1, *(1 if m else -1 for _, m, _ in rest)]),
        turn_ids=tuple(draw(st.lists(st.text(max_size=5), max_size=3))),
    )


@settings(deadline=None)
@given(turns())
def test_a_turn_survives_json_and_packing_bit_for_bit(value: Turn) -> None:
    tree = codec.turn_tree(value)
    assert codec.load_turn(json.loads(json.dumps(codec.to_json_tree(tree)))) == value
    assert codec.load_turn(codec.load_packed(codec.dump_packed(tree))) == value


@settings(deadline=None)
@given(sequences())
def test_a_sequence_survives_json_and_packing_bit_for_bit(value: Sequence) -> None:
    tree = codec.sequence_tree(value)
    assert codec.load_sequence(json.loads(json.dumps(codec.to_json_tree(tree)))) == value
    assert codec.load_sequence(codec.load_packed(codec.dump_packed(tree))) == value


def test_a_trajectory_survives_json_and_packing() -> None:
    tree = codec.trajectory_tree(trajectory())
    assert codec.load_trajectory(json.loads(json.dumps(codec.to_json_tree(tree)))) == trajectory()
    assert codec.load_trajectory(codec.load_packed(codec.dump_packed(tree))) == trajectory()


def test_an_incomplete_turns_odd_log_probs_are_null_in_json_and_stay_odd() -> None:
    odd = turn(logprobs=array("f", [-math.inf, -1.5]), incomplete="the engine reported -inf")
    plain = json.loads(json.dumps(codec.to_json_tree(codec.turn_tree(odd)), allow_nan=False))
    assert plain["logprobs"] == [None, -1.5]
    assert math.isnan(codec.load_turn(plain).logprobs[0])


def test_a_null_log_prob_in_a_complete_turn_is_a_broken_contract() -> None:
    with pytest.raises(ContractViolation, match="not finite"):
        codec.load_turn(codec.turn_tree(turn()) | {"logprobs": [None, -1.5]})


WRONG_TYPES: list[Any] = [5, "x", None, [1.5], ["a"], [[1]], {"a": 1}, [2**31], True]


@pytest.mark.parametrize("wrong", WRONG_TYPES, ids=repr)
@pytest.mark.parametrize("name", ["prompt_token_ids", "completion_token_ids"])
def test_ids_of_the_wrong_type_are_a_bad_request(name: str, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="not a turn"):
        codec.load_turn(codec.turn_tree(turn()) | {name: wrong})


@pytest.mark.parametrize("name", sorted(codec.turn_tree(turn())))
def test_a_turn_field_of_the_wrong_type_is_a_bad_request(name: str) -> None:
    with pytest.raises(BadRequest, match="not a turn"):
        codec.load_turn(codec.turn_tree(turn()) | {name: {"wrong": True}})


REQUIRED = {"turn_id", "call_id", "index", "prompt_token_ids", "completion_token_ids", "logprobs", "finish_reason",
            "policy_version_start", "policy_version_end", "started_at", "ended_at"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_turn_without_a_required_field_is_a_bad_request(name: str) -> None:
    tree = codec.turn_tree(turn())
    del tree[name]
    with pytest.raises(BadRequest, match=name):
        codec.load_turn(tree)


WRONG_IN_TRAJECTORY: list[tuple[str, Any]] = [
    ("session_id", 5), ("session_id", None), ("mode", "fast"), ("mode", 5), ("incomplete", 5), ("incomplete", True),
    ("ledger", None), ("ledger", [1]), ("ledger", {"sampled": "3"}), ("ledger", {"trained": 1.0, "sampled": 1.0}),
    ("ledger", {"surprise": 1}), ("metadata", None), ("metadata", [1]), ("turns", None), ("turns", 5), ("turns", [5]),
    ("turns", "x"), ("sequences", None), ("sequences", [{}]), ("sequences", {"a": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), WRONG_IN_TRAJECTORY, ids=repr)
def test_a_trajectory_field_of_the_wrong_type_is_a_bad_request(name: str, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="not a "):
        codec.load_trajectory(codec.trajectory_tree(trajectory()) | {name: wrong})


@pytest.mark.parametrize("wrong", [None, 5, "x", [], {}], ids=repr)
def test_what_is_no_object_is_a_bad_request(wrong: Any) -> None:
    for load in (codec.load_turn, codec.load_sequence, codec.load_trajectory):
        with pytest.raises(BadRequest):
            load(wrong)


def test_an_unknown_turn_field_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="surprise"):
        codec.load_turn(codec.turn_tree(turn()) | {"surprise": 1})


@pytest.mark.parametrize(
    "change", [{"prompt_length": 2}, {"turn_ids": "t-0"}, {"turn_ids": [1]}, {"loss_mask": [0] * 4}]
)
def test_a_sequence_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((BadRequest, ContractViolation)):
        codec.load_sequence(codec.sequence_tree(sequence()) | change)
