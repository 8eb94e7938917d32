"""How the shapes that real agents leave behind are cut."""

from __future__ import annotations

import dataclasses
import time
from array import array

import pytest

from rollway_gateway.tree import cut
from rollway_wire.codec import dump_packed, load_packed, load_trajectory, trajectory_tree
from rollway_wire.problems import ContractViolation
from rollway_wire.tokens import Trajectory
from tests.gateway_tree.sessions import turn


def rows(trajectory: Trajectory) -> list[tuple[str, ...]]:
    return [s.turn_ids for s in trajectory.sequences]


def test_a_session_without_turns_has_no_sequence_and_an_empty_ledger() -> None:
    trajectory = cut("s", [], incomplete="no turns")
    assert trajectory.sequences == () and trajectory.ledger.sampled == 0 and trajectory.incomplete == "no turns"


def test_a_sub_agent_trains_alone_and_the_main_line_stays_one_sequence() -> None:
    main1, sub1 = turn(0, [1, 2], [3]), turn(1, [9], [8])
    sub2, main2 = turn(2, [9, 8, 7], [6]), turn(3, [1, 2, 3, 4], [5])
    assert rows(cut("s", [main1, sub1, sub2, main2])) == [("t1", "t2"), ("t0", "t3")]


def test_parallel_calls_from_one_history_share_it_as_context_but_train_it_once() -> None:
    root, left, right = turn(0, [1], [2]), turn(1, [1, 2, 3], [4]), turn(2, [1, 2, 5], [6])
    trajectory = cut("s", [root, left, right])
    assert rows(trajectory) == [("t0", "t1"), ("t2",)]
    assert trajectory.sequences[1].loss_mask == array("B", [0, 0, 0, 1]), "t0 is context here"


def test_each_choice_of_one_call_is_trained_and_the_one_gone_on_with_carries_the_line() -> None:
    first, second = turn(0, [1], [2, 3]), turn(0, [1], [4], choice=1)
    after = turn(1, [1, 4, 5], [6])
    assert rows(cut("s", [first, second, after])) == [("t0",), ("t0.1", "t1")]


def test_two_equal_answers_each_continued_make_two_sequences_not_three() -> None:
    """The longest match alone would hang both continuations on the same one."""
    a, b = turn(0, [1], [2]), turn(1, [1], [2])
    c, d = turn(2, [1, 2, 3], [4]), turn(3, [1, 2, 5], [6])
    assert rows(cut("s", [a, b, c, d])) == [("t0", "t2"), ("t1", "t3")]


def test_compaction_starts_a_new_sequence_and_the_last_one_holds_the_final_answer() -> None:
    a, b = turn(0, [1], [2]), turn(1, [1, 2, 3], [4])
    summary, final = turn(2, [1, 9], [5]), turn(3, [1, 9, 5, 6], [7])
    assert rows(cut("s", [a, b, summary, final])) == [("t0", "t1"), ("t2", "t3")]


def test_a_retry_of_the_same_prompt_is_a_second_branch() -> None:
    assert rows(cut("s", [turn(0, [1], [2]), turn(1, [1], [3])])) == [("t0",), ("t1",)]


def test_a_prompt_that_holds_part_of_an_answer_branches_and_counts_as_drift() -> None:
    """Mirror mode: H+AVING came back as HAV+ING."""
    a, b = turn(0, [1, 2], [10, 11, 12]), turn(1, [1, 2, 10, 20, 12, 3], [4])
    trajectory = cut("s", [a, b], metadata={"template": "qwen3"})
    assert rows(trajectory) == [("t0",), ("t1",)]
    assert trajectory.metadata == {
        "template": "qwen3",
        "drift": 1,
        "drift_events": [{"turn_id": "t1", "earlier_turn_id": "t0", "kept_tokens": 1, "sampled_tokens": 3}],
    }


def test_a_prompt_that_dropped_all_of_an_answer_is_drift_too() -> None:
    """Qwen3's template drops earlier reasoning: the first sampled token is already gone."""
    trajectory = cut("s", [turn(0, [1, 2], [10, 11]), turn(1, [1, 2, 11, 3], [4])])
    assert [e["kept_tokens"] for e in trajectory.metadata["drift_events"]] == [0]


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param([turn(0, [1], [2]), turn(1, [1], [3])], id="retry"),
        pytest.param([turn(0, [1], [2]), turn(0, [1], [3], choice=1), turn(1, [1, 3, 4], [5])], id="another choice"),
        pytest.param([turn(0, [1], [2], incomplete="aborted"), turn(1, [1, 3], [4])], id="after a turn cut short"),
        pytest.param([turn(0, [1], [2]), turn(1, [1, 2, 3], [4]), turn(2, [1, 2, 5], [6])], id="parallel calls"),
    ],
)
def test_branches_that_lost_no_token_are_not_drift(turns) -> None:
    assert cut("s", turns).metadata["drift"] == 0


def test_an_incomplete_turn_trains_nothing_and_is_context_for_what_extends_it() -> None:
    a, b, c = turn(0, [1], [2]), turn(1, [1, 2, 3], [4], incomplete="no log-probs"), turn(2, [1, 2, 3, 4, 5], [6])
    trajectory = cut("s", [a, b, c], lost_tokens=2)
    assert rows(trajectory) == [("t0", "t2")]
    assert trajectory.sequences[0].loss_mask == array("B", [0, 1, 0, 0, 0, 1])
    assert dataclasses.asdict(trajectory.ledger) | {"sampled": 5, "trained": 2, "lost": 3} == dataclasses.asdict(
        trajectory.ledger
    )


def test_tokens_sampled_across_a_weight_update_carry_the_version_they_were_dispatched_under() -> None:
    straddling = dataclasses.replace(turn(0, [1], [2, 3], version=4), policy_version_end=5)
    assert cut("s", [straddling]).sequences[0].policy_versions == array("i", [-1, 4, 4])


def test_the_end_of_a_turn_orders_its_sequence_not_the_start() -> None:
    """A side call dispatched after the final answer but done before it does not become the last sequence."""
    final, title = turn(0, [1], [2], ended_at=9.0), turn(1, [5], [6], ended_at=3.0)
    assert rows(cut("s", [final, title])) == [("t1",), ("t0",)]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ContractViolation, match="share a turn_id"):
        cut("s", [turn(0, [1], [2]), turn(0, [1], [2])])
    with pytest.raises(ContractViolation, match="lost_tokens"):
        cut("s", [], lost_tokens=-1)


def test_a_trajectory_survives_the_packed_codec() -> None:
    trajectory = cut("s", [turn(0, [1], [2]), turn(1, [1, 9, 9], [4])])
    assert load_trajectory(load_packed(dump_packed(trajectory_tree(trajectory)))) == trajectory


@pytest.mark.parametrize("shape", ["linear", "drifting", "star"])
def test_200_turns_over_30k_tokens_are_cut_within_seconds(shape: str) -> None:
    """Comparing every pair of turns token by token would take minutes."""
    turns, history = [], list(range(100))
    for i in range(200):
        prompt = history + [1000 + i] * 100
        turns.append(turn(i, prompt, range(5000 + i, 5050 + i)))
        history = {
            "linear": prompt + list(range(5000 + i, 5050 + i)),
            "drifting": prompt + list(range(5000 + i, 5040 + i)) + [7] * 10,
            "star": [*range(30_000)],
        }[shape]
    started = time.process_time()
    trajectory = cut("s", turns)
    spent = time.process_time() - started
    assert len(trajectory.sequences) == {"linear": 1, "drifting": 200, "star": 200}[shape]
    assert spent < 5, f"{spent:.2f} CPU s"
