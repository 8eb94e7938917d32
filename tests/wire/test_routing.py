"""Routed experts on the wire: every row is where it says, or the value cannot be made or read."""

from __future__ import annotations

import dataclasses
import json
from array import array
from typing import Any

import pytest

from rollway_wire import codec
from rollway_wire.problems import BadRequest, ContractViolation
from rollway_wire.routing import RoutedExperts, Rows
from tests.wire.examples import routed_trajectory, sequence, trajectory, turn

ROWS = array("B", range(16))
"""4 rows of 2 layers with 2 experts each: one for each of a turn's 5 tokens but the last."""


def routed(**changed: Any) -> RoutedExperts:
    return RoutedExperts(**{"layers": 2, "top_k": 2, "data": ROWS, **changed})


BAD_VALUES: dict[str, dict[str, Any]] = {
    "a list": {"data": [0] * 16},
    "another element type": {"data": array("i", [0] * 16)},
    "no rows": {"data": array("B")},
    "a part of a row": {"data": ROWS[:-1]},
    "no layers": {"layers": 0},
    "no experts": {"top_k": 0},
    "a start below 0": {"start": -1, "after": "t"},
    "a start after nothing": {"start": 1},
    "the first row after a turn": {"after": "t"},
}
BAD_TURNS: dict[str, RoutedExperts] = {
    "a row missing": routed(data=ROWS[:-4]),
    "a row for the last token": routed(data=ROWS + ROWS[:4]),
    "a start that the rows do not agree with": routed(start=1, after="t"),
    "a start past the prompt": routed(start=3, after="t", data=ROWS[:4]),
}
BAD_SPANS: dict[str, tuple[Rows, ...]] = {
    "none": (),
    "the first row missing": (Rows("t-0", 1, 4),),
    "the last row missing": (Rows("t-0", 0, 3),),
    "a row for the last token": (Rows("t-0", 0, 5),),
    "a gap": (Rows("t-0", 0, 1), Rows("t-0", 2, 4)),
    "an overlap": (Rows("t-0", 0, 3), Rows("t-0", 2, 4)),
    "an empty span": (Rows("t-0", 0, 0), Rows("t-0", 0, 4)),
}


@pytest.mark.parametrize("what", sorted(BAD_VALUES))
def test_rows_that_are_none_cannot_be_made(what: str) -> None:
    with pytest.raises(ContractViolation):
        routed(**BAD_VALUES[what])


@pytest.mark.parametrize("what", sorted(BAD_TURNS))
@pytest.mark.parametrize("incomplete", [None, "the answer did not reach the agent"])
def test_a_turn_has_a_row_for_each_token_but_the_last_or_none_at_all(what: str, incomplete: str | None) -> None:
    with pytest.raises(ContractViolation, match="routed experts of rows"):
        turn(routed_experts=BAD_TURNS[what], incomplete=incomplete)


def test_a_turn_cannot_have_rows_and_say_why_it_has_none() -> None:
    assert turn(routed_experts=routed()).routed_experts is not None
    with pytest.raises(ContractViolation):
        turn(routed_experts=routed(), unrouted="why")


@pytest.mark.parametrize("what", sorted(BAD_SPANS))
def test_a_sequence_takes_a_row_for_each_token_but_the_last_from_somewhere(what: str) -> None:
    with pytest.raises(ContractViolation, match="routed experts"):
        sequence(routing=BAD_SPANS[what])


def test_a_sequence_cannot_have_rows_and_say_why_it_has_none() -> None:
    with pytest.raises(ContractViolation, match="unrouted"):
        sequence(routing=(Rows("t-0", 0, 4),), unrouted="why")


def test_a_trajectory_puts_a_sequences_rows_together() -> None:
    made = routed_trajectory()
    whole = made.routed_experts(made.sequences[0])
    assert whole is not None
    assert (whole.start, whole.after, whole.rows, whole.form) == (0, None, 8, (1, 2, "H"))
    assert whole.data == array("H", [0, 1, 2, 3, 4, 5, 6, 300, 8, 9, 10, 11, 12, 13, 14, 15])
    assert made.routed_experts(made.sequences[1]) is None


def test_a_trajectory_refuses_rows_that_no_turn_holds_for_these_tokens() -> None:
    made = routed_trajectory()
    first, second, third = made.turns
    assert second.routed_experts is not None
    wide = dataclasses.replace(second.routed_experts, data=array("B", range(8)))
    other = dataclasses.replace(first, prompt_token_ids=array("i", [1, 4094, 198]))
    for turns, why in [
        ((first, third), "turn t-1 does not hold rows 4 to 8"),
        ((dataclasses.replace(first, routed_experts=None), second, third), "turn t-0 does not hold rows 0 to 4"),
        ((other, second, third), "turn t-0 is routed for other tokens"),
        ((first, dataclasses.replace(second, routed_experts=wide), third), "turn t-1 is routed in the form"),
    ]:
        with pytest.raises(ContractViolation, match=why):
            dataclasses.replace(made, turns=turns)
    beyond = dataclasses.replace(made.sequences[0], routing=(Rows("t-0", 0, 5), Rows("t-1", 5, 8)))
    with pytest.raises(ContractViolation, match="turn t-0 does not hold rows 0 to 5"):
        dataclasses.replace(made, sequences=(beyond,))


def test_rows_survive_json_and_packing_bit_for_bit() -> None:
    tree = codec.trajectory_tree(routed_trajectory())
    assert codec.load_trajectory(json.loads(json.dumps(codec.to_json_tree(tree)))) == routed_trajectory()
    assert codec.load_trajectory(codec.load_packed(codec.dump_packed(tree))) == routed_trajectory()


def test_rows_travel_once_and_as_they_are() -> None:
    """The rows are all that makes the document longer; no sequence repeats them."""
    rows = array("B", bytes(1000 * 200))
    base = turn(prompt_token_ids=array("i", range(199)), completion_token_ids=array("i", [1, 2]))
    plain = dataclasses.replace(trajectory(), turns=(base,), sequences=())
    value = RoutedExperts(layers=125, top_k=8, data=rows)
    made = dataclasses.replace(plain, turns=(dataclasses.replace(base, routed_experts=value),))
    size = [len(codec.dump_packed(codec.trajectory_tree(t))) for t in (plain, made)]
    assert len(rows) <= size[1] - size[0] < len(rows) + 200


def test_a_document_without_rows_holds_no_word_of_them() -> None:
    """So that a reader from before them reads it, and one from after them reads what was written before."""
    text = json.dumps(codec.to_json_tree(codec.trajectory_tree(trajectory())))
    assert "rout" not in text


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    tree = codec.to_json_tree(codec.trajectory_tree(routed_trajectory()))
    spot = tree
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return tree


ROUTED = ["turns", 0, "routed_experts"]
SPANS = ["sequences", 0, "routing"]


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (ROUTED, 5), (ROUTED, {}), (ROUTED, []), ([*ROUTED, "dtype"], "int32"), ([*ROUTED, "dtype"], None),
        ([*ROUTED, "data"], "AAEC"), ([*ROUTED, "data"], [70000]), ([*ROUTED, "data"], [0.5]),
        ([*ROUTED, "data"], None), ([*ROUTED, "layers"], 1.0), ([*ROUTED, "top_k"], "2"), ([*ROUTED, "start"], None),
        ([*ROUTED, "after"], 5),
        ([*ROUTED, "surprise"], 1), (["turns", 2, "unrouted"], 5), (["sequences", 1, "unrouted"], 5),
        (SPANS, 5), (SPANS, [5]), (SPANS, [["t-0", 0]]), (SPANS, [["t-0", 0, 8, 1]]), ([*SPANS, 0, 0], 5),
        ([*SPANS, 0, 1], 0.0), ([*SPANS, 0, 2], "4"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_routing_field_of_the_wrong_type_is_a_bad_request(path: list[Any], wrong: Any) -> None:
    with pytest.raises(BadRequest, match="not a "):
        codec.load_trajectory(changed(path, wrong))


def test_fewer_rows_than_tokens_are_a_broken_contract() -> None:
    with pytest.raises(ContractViolation):
        codec.load_trajectory(changed([*ROUTED, "data"], [0, 1]))
