"""The transition table, exhaustively: every state met by every trigger, and the rules stated above the table."""

from __future__ import annotations

from itertools import product

import pytest

from rollway_dispatcher.lifecycle import IMPOSSIBLE, LATE, TABLE, Duty, Trigger, next_move
from rollway_wire.batch import TERMINAL, RolloutState
from rollway_wire.problems import ContractViolation

S, T = RolloutState, Trigger
EXPECTED: dict[RolloutState, dict[Trigger, RolloutState]] = {
    S.PENDING: {T.ADMITTED: S.STARTING, T.NOTICED: S.COLLECTING, T.CANCELLED: S.CANCELLED},
    S.STARTING: {
        T.INVOKED: S.RUNNING, T.REFUSED: S.PENDING, T.START_RETRIED: S.PENDING, T.START_FAILED: S.FAILED,
        T.NOTICED: S.COLLECTING, T.CANCELLED: S.CANCELLED,
    },
    S.RUNNING: {T.NOTICED: S.COLLECTING, T.SUSPECTED: S.COLLECTING, T.CANCELLED: S.CANCELLED},
    S.COLLECTING: {
        T.COLLECTED: S.SUCCEEDED, T.RESULT_RETRIED: S.PENDING, T.RESULT_FAILED: S.FAILED, T.CANCELLED: S.CANCELLED,
    },
    S.SUCCEEDED: {},
    S.FAILED: {},
    S.CANCELLED: {},
}  # fmt: skip
OVERTAKEN = {T.INVOKED, T.REFUSED, T.START_RETRIED, T.START_FAILED, T.NOTICED, T.SUSPECTED}


@pytest.mark.parametrize(("state", "trigger"), list(product(RolloutState, Trigger)))
def test_each_state_meets_each_trigger_as_expected(state: RolloutState, trigger: Trigger) -> None:
    late = (state in TERMINAL and trigger is not T.ADMITTED) or (state is S.COLLECTING and trigger in OVERTAKEN)
    if trigger in EXPECTED[state]:
        move = next_move(state, trigger)
        assert move is not None
        assert move.to is EXPECTED[state][trigger]
    elif late:
        assert next_move(state, trigger) is None
    else:
        with pytest.raises(ContractViolation, match=state.value):
            next_move(state, trigger)


def test_every_pair_is_in_exactly_one_of_moves_late_and_impossible() -> None:
    every = set(product(RolloutState, Trigger))
    assert TABLE.keys() | LATE | IMPOSSIBLE == every
    assert len(TABLE) + len(LATE) + len(IMPOSSIBLE) == len(every)


@pytest.mark.parametrize(("state", "trigger"), list(TABLE))
def test_rules_hold_in_every_move(state: RolloutState, trigger: Trigger) -> None:
    move = TABLE[state, trigger]
    assert (Duty.START in move.duties) == (move.to is S.STARTING)
    assert move.duties.count(Duty.PUBLISH) == (move.to in TERMINAL)
    assert state not in TERMINAL
    onwards = {S.STARTING: {S.RUNNING, S.COLLECTING}, S.RUNNING: {S.COLLECTING}, S.COLLECTING: set[RolloutState]()}
    leaves_session = state in onwards and move.to not in onwards[state] and trigger is not T.REFUSED
    assert (Duty.STOP in move.duties) == leaves_session
    assert (Duty.COLLECT in move.duties) == (move.to is S.COLLECTING)
    if trigger is T.SUSPECTED:
        assert move.to is S.COLLECTING, "S3 is asked before anything is declared dead"


@pytest.mark.parametrize("state", [S.PENDING, S.STARTING, S.RUNNING, S.COLLECTING])
def test_everything_alive_can_be_cancelled(state: RolloutState) -> None:
    assert TABLE[state, T.CANCELLED].to is S.CANCELLED
