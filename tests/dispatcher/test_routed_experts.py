"""Routed experts pass through the dispatcher as they came: packed, each row once."""

from __future__ import annotations

import dataclasses
from array import array

from rollway_dispatcher.results_page import Found, packed_page
from rollway_dispatcher.store_reader import StoredResult
from rollway_wire.codec import dump_packed, load_packed, load_trajectory, trajectory_tree
from rollway_wire.routing import RoutedExperts
from tests.wire.examples import RESULT, routed_trajectory


def _stored(packed: bytes) -> StoredResult:
    return StoredResult(1, RESULT.model_dump_json().encode(), packed)


def test_a_page_gives_back_the_rows_that_the_gateway_gave() -> None:
    packed = dump_packed(trajectory_tree(routed_trajectory()))
    (entry,) = load_packed(packed_page(Found([_stored(packed)], 0, 1)))["results"]
    made = load_trajectory(entry["trajectory"])
    assert made == routed_trajectory()
    assert made.routed_experts(made.sequences[0]) is not None


def test_a_page_weighs_what_its_rows_weigh() -> None:
    base = routed_trajectory()
    turn = base.turns[0]
    wide = RoutedExperts(layers=60, top_k=8, data=array("H", range(4 * 480)))
    heavy = dataclasses.replace(base, turns=(dataclasses.replace(turn, routed_experts=wide),), sequences=())
    packed = dump_packed(trajectory_tree(heavy))
    assert 2 * 4 * 480 < len(packed_page(Found([_stored(packed)], 0, 1))) < len(packed) + 1000
