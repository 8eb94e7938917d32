"""Routed experts of cut sequences: each row is the one that an engine would have reported for its token, or there are
none and a reason."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_gateway.tree import cut
from rollway_gateway.tree.held import RECENT, Held
from rollway_wire.problems import ContractViolation
from rollway_wire.routing import RoutedExperts, Rows
from rollway_wire.tokens import Sequence, Trajectory, Turn
from tests.gateway_tree.sessions import turn
from tests.gateway_tree.test_cut_properties import session_trees
from tests.kit.scripted_router import ScriptedRouter

LAYERS, TOP_K = 2, 2
SILENT = "the engine returned no routed experts"


def route(tokens: array[int], version: int) -> array[int]:
    return ScriptedRouter(LAYERS, TOP_K, weights=version).rows(tokens)


def tokens_of(t: Turn) -> array[int]:
    return t.prompt_token_ids + t.completion_token_ids


def routed(t: Turn, held: Held) -> Turn:
    """As the gateway keeps an engine's report: from where the session's rows end."""
    ahead = held.ahead(t.prompt_token_ids, t.policy_version_start)
    data = route(tokens_of(t)[:-1], t.policy_version_start)[ahead.start * LAYERS * TOP_K :]
    value = RoutedExperts(start=ahead.start, after=ahead.after, layers=LAYERS, top_k=TOP_K, data=data)
    made = dataclasses.replace(t, routed_experts=value)
    held.add(made)
    return made


def kept(turns: Iterable[Turn], silent: Iterable[bool]) -> list[Turn]:
    """Turns in the order of their calls; a silent one reports nothing."""
    held, out = Held(), []
    for t, mute in zip(sorted(turns, key=lambda t: t.index), silent, strict=False):
        if mute and t.incomplete is None:
            out.append(dataclasses.replace(t, unrouted=SILENT))
        else:  # of an answer that reached nobody, the evidence may be whole: it is kept, and may be gone on from
            out.append(t if mute else routed(t, held))
    return out


def path_of(s: Sequence, turns: Iterable[Turn]) -> list[Turn]:
    by_id = {t.turn_id: t for t in turns}
    return [by_id[turn_id] for turn_id in s.turn_ids]


def version_of_row(path: list[Turn], row: int) -> int:
    """Of the earliest of a sequence's turns that read the token."""
    return next(t.policy_version_start for t in path if row < t.length - 1)


def expected(s: Sequence, path: list[Turn]) -> array[int]:
    by_version = {v: route(s.token_ids, v) for v in {t.policy_version_start for t in path}}
    width, out = LAYERS * TOP_K, array("B")
    for row in range(len(s.token_ids) - 1):
        out += by_version[version_of_row(path, row)][row * width : (row + 1) * width]
    return out


def replayable(path: list[Turn]) -> bool:
    """The last turn was reported, and each silent one is read again under its own policy version."""
    nexts = [next((u for u in path[i:] if u.routed_experts is not None), None) for i in range(len(path))]
    return all(
        u is not None and u.policy_version_start == t.policy_version_start for t, u in zip(path, nexts, strict=True)
    )


def stored(trajectory: Trajectory) -> int:
    return sum(t.routed_experts.rows for t in trajectory.turns if t.routed_experts is not None)


@settings(max_examples=250, deadline=None)
@given(session_trees(), st.lists(st.sampled_from([False, False, False, True]), min_size=12, max_size=12))
def test_each_row_is_the_routers_for_its_token_and_prefix_or_there_is_none_at_all(
    turns: list[Turn], silent: list[bool]
) -> None:
    made = kept(turns, silent)
    trajectory = cut("s", made)
    for s in trajectory.sequences:
        path = path_of(s, made)
        whole = trajectory.routed_experts(s)
        if replayable(path):
            assert whole is not None
            assert (whole.layers, whole.top_k, whole.data) == (LAYERS, TOP_K, expected(s, path))
        else:
            assert whole is None
            assert s.unrouted is not None and SILENT in s.unrouted


@settings(max_examples=100, deadline=None)
@given(session_trees())
def test_under_one_version_a_session_whose_turns_all_report_is_replayable_whole(turns: list[Turn]) -> None:
    made = kept([dataclasses.replace(t, policy_version_start=1, policy_version_end=1) for t in turns], [False] * 12)
    trajectory = cut("s", made)
    for s in trajectory.sequences:
        whole = trajectory.routed_experts(s)
        assert whole is not None and whole.data == route(s.token_ids[:-1], 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.lists(st.integers(0, 5), min_size=1,
                max_size=4)), min_size=1, max_size=RECENT + 4))  # fmt: skip
def test_a_linear_session_stores_each_row_once(steps: list[tuple[list[int], list[int]]]) -> None:
    history, turns = [], []
    for i, (messages, completion) in enumerate(steps):
        history = history + messages
        turns.append(turn(i, history, completion))
        history = history + completion
    made = kept(turns, [False] * len(turns))
    trajectory = cut("s", made)
    (s,) = trajectory.sequences
    whole = trajectory.routed_experts(s)
    assert stored(trajectory) == len(history) - 1
    assert whole is not None and whole.data == route(s.token_ids[:-1], 1)
    assert [span.turn_id for span in s.routing or ()] == [t.turn_id for t in turns]


def test_without_routed_experts_a_sequence_says_nothing_of_them() -> None:
    (s,) = cut("s", [turn(0, [1], [2])]).sequences
    assert (s.routing, s.unrouted) == (None, None)


def test_a_branch_takes_the_rows_of_the_prefix_it_shares() -> None:
    made = kept([turn(0, [1, 2], [3]), turn(1, [1, 2, 3, 4], [5]), turn(2, [1, 2, 3, 4, 9], [6])], [False] * 3)
    trajectory = cut("s", made)
    main, branch = trajectory.sequences
    assert main.turn_ids == ("t0", "t1") and branch.turn_ids == ("t2",)
    assert branch.routing == (Rows("t0", 0, 2), Rows("t1", 2, 4), Rows("t2", 4, 5))
    assert stored(trajectory) == 2 + 2 + 1


def test_an_undelivered_answer_that_is_gone_on_from_lends_its_rows() -> None:
    first, second = kept([turn(0, [1], [2, 3], incomplete="the answer did not reach the agent"),
                          turn(1, [1, 2, 3, 4], [5])], [False] * 2)  # fmt: skip
    trajectory = cut("s", [first, second])
    (s,) = trajectory.sequences
    assert s.turn_ids == ("t1",) and s.routing == (Rows("t0", 0, 2), Rows("t1", 2, 4))


def test_tokens_of_an_incomplete_turn_get_their_rows_from_the_prompt_that_holds_them() -> None:
    made = kept([turn(0, [1], [2, 3], incomplete="no log-probs"), turn(1, [1, 2, 3, 4], [5])], [True, False])
    (s,) = cut("s", made).sequences
    assert s.routing == (Rows("t1", 0, 4),)


def test_a_silent_last_turn_costs_the_sequence_its_routing() -> None:
    made = kept([turn(0, [1], [2]), turn(1, [1, 2, 3], [4])], [False, True])
    (s,) = cut("s", made).sequences
    assert s.routing is None and s.unrouted == f"turn t1: {SILENT}"


def test_a_silent_turn_is_not_replayed_as_another_policy_routes_it() -> None:
    made = kept([turn(0, [1], [2]), turn(1, [1, 2, 3], [4], version=2)], [True, False])
    (s,) = cut("s", made).sequences
    assert s.routing is None and s.unrouted is not None and "another policy version" in s.unrouted


def test_a_turn_under_new_weights_is_asked_for_all_its_rows() -> None:
    held = Held()
    routed(turn(0, [1], [2]), held)
    assert held.ahead(array("i", [1, 2, 3]), 1).start == 1
    assert held.ahead(array("i", [1, 2, 3]), 2) == (0, None)


def test_a_turn_that_spans_a_weight_update_lends_no_rows() -> None:
    held = Held()
    routed(dataclasses.replace(turn(0, [1], [2]), policy_version_end=2), held)
    assert held.ahead(array("i", [1, 2, 3]), 1) == held.ahead(array("i", [1, 2, 3]), 2) == (0, None)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.lists(st.integers(0, 1), min_size=2, max_size=8))
def test_what_is_held_of_a_prompt_is_what_it_shares_but_never_all_of_it(prompt: list[int], before: list[int]) -> None:
    held = Held()
    routed(turn(0, before[:1], before[1:]), held)
    shared = next((i for i, (a, b) in enumerate(zip(prompt, before, strict=False)) if a != b),
                  min(len(prompt), len(before)))  # fmt: skip
    assert held.ahead(array("i", prompt), 1).start == min(shared, len(before) - 1, len(prompt) - 1)


def test_rows_of_different_forms_are_no_routing() -> None:
    first, second = kept([turn(0, [1], [2]), turn(1, [1, 2, 3], [4])], [False, False])
    assert second.routed_experts is not None
    other = dataclasses.replace(second.routed_experts, layers=1, top_k=4)
    (s,) = cut("s", [first, dataclasses.replace(second, routed_experts=other)]).sequences
    assert s.routing is None and s.unrouted is not None and "different forms" in s.unrouted


def test_rows_that_go_on_from_nothing_are_no_trajectory() -> None:
    first, second = kept([turn(0, [1], [2]), turn(1, [1, 2, 3], [4])], [False, False])
    with pytest.raises(ContractViolation, match="nothing holds its routed experts"):
        cut("s", [second])
    with pytest.raises(ContractViolation, match="nothing holds its routed experts"):
        cut("s", [dataclasses.replace(first, routed_experts=None), second])
