"""Sessions are scored by what the engine was prompted with and sampled, nothing else."""

from __future__ import annotations

import json

import pytest

from benchmarks.fidelity.score import Score, score
from benchmarks.fidelity.scripted_engine import Drawn
from benchmarks.fidelity.scripts import SCRIPTS, TURNS, echoed

FIRST = Drawn("a", (1, 2), (3, 4))
APPENDED = Drawn("a", (1, 2, 3, 4, 5), (6,))
DRIFTED = Drawn("a", (1, 2, 3, 9, 5), (6,))


def test_an_appended_turn_is_exact_and_one_row_trains_both() -> None:
    got = score([FIRST, APPENDED], [([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])])
    assert got == Score(
        sessions=1, turns=2, exact=2, trained=2, sequences=1, sampled_tokens=3, wrong_tokens=0, row_tokens=6
    )


def test_a_drifted_turn_is_not_exact_but_trains_in_a_row_of_its_own() -> None:
    rows = [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 9, 5, 6], [0, 0, 0, 0, 0, 1])]
    got = score([FIRST, DRIFTED], rows)
    assert (got.exact, got.trained, got.sequences, got.wrong_tokens, got.fidelity) == (1, 2, 2, 0, 0.5)


def test_tokens_trained_after_another_prompt_than_their_own_are_wrong() -> None:
    got = score([FIRST, DRIFTED], [([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])])
    assert (got.trained, got.wrong_tokens) == (1, 1)


def test_a_turn_trained_twice_does_not_count_as_trained() -> None:
    row = ([1, 2, 3, 4], [0, 0, 1, 1])
    assert score([FIRST], [row, row]).trained == 0


def test_each_conversation_of_a_session_is_compared_with_its_own_history() -> None:
    other = Drawn("b", (7, 8), (9,))
    assert score([FIRST, other, APPENDED], []).exact == 3


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_says_the_same_each_time_and_its_pieces_make_up_its_text(name: str) -> None:
    script = SCRIPTS[name]
    for turn in range(TURNS):
        assert "".join(script.pieces(3, turn)) == script.says(3, turn) == script.says(3, turn)
    assert "<tool_call>" not in script.says(3, TURNS - 1)
    assert ("<tool_call>" in script.says(3, 0)) == script.uses_tools


def test_a_rekeying_agent_changes_the_text_of_arguments_and_not_their_meaning() -> None:
    written = '{"unit": "C", "city": "Paris"}'
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "w", "arguments": written}}]}
    sent = echoed(SCRIPTS["rekeyed"], message)["tool_calls"][0]["function"]["arguments"]
    assert sent != written and json.loads(sent) == {"unit": "C", "city": "Paris"}
