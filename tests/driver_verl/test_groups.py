"""A group is decided once, whole, when all its rollouts have ended."""

from __future__ import annotations

import itertools

import pytest

from rollway_driver.verl.groups import Groups
from rollway_driver.verl.rows import Refusal, Session, read_session
from rollway_wire.failures import FailureType
from rollway_wire.problems import ContractViolation
from tests.driver_verl.made import result, rules, sequence, trajectory


def ended(index: int, well: bool) -> Session | Refusal:
    t = trajectory(sequence([(2, 0), (2, 1)]))
    return read_session(result(index=index, failure=None if well else FailureType.AGENT_DIED), t, rules())


@pytest.mark.parametrize("outcome", list(itertools.product([True, False], repeat=3)))
def test_a_group_trains_with_two_survivors_and_not_with_fewer(outcome: tuple[bool, ...]) -> None:
    for order in itertools.permutations(range(3)):
        groups = Groups(["g"], 3, 2)
        *first, last = [groups.take("g", ended(i, outcome[i])) for i in order]
        assert first == [None, None] and last is not None
        assert last.committed is (sum(outcome) >= 2)
        assert [s.index for s in last.sessions] == [i for i in range(3) if outcome[i]]
        assert [r.index for r in last.refusals] == [i for i in range(3) if not outcome[i]]
        assert last.rows == (sum(outcome) if last.committed else 0)
        assert not groups.open


def test_the_same_rollout_reported_twice_counts_once() -> None:
    groups = Groups(["g"], 2, 2)
    assert groups.take("g", ended(0, True)) is None
    assert groups.take("g", ended(0, True)) is None
    decided = groups.take("g", ended(1, True))
    assert decided is not None and len(decided.sessions) == 2


def test_giving_up_trains_nothing_even_with_survivors() -> None:
    groups = Groups(["g", "h"], 3, 2)
    groups.take("g", ended(0, True))
    groups.take("g", ended(1, True))
    given_up = groups.give_up("g")
    assert not given_up.committed and given_up.rows == 0 and groups.open == {"h"}


@pytest.mark.parametrize(("uid", "index"), [("other", 0), ("g", 2), ("g", -1)])
def test_a_result_nobody_asked_for_is_a_broken_contract(uid: str, index: int) -> None:
    with pytest.raises(ContractViolation, match="did not ask for"):
        Groups(["g"], 2, 2).take(uid, ended(index, True))


def test_of_a_group_with_extras_the_first_n_usable_count_and_what_ends_later_does_not() -> None:
    groups = Groups(["g"], 2, 2, extra=2)
    assert groups.take("g", ended(3, False)) is None
    assert groups.take("g", ended(2, True)) is None
    decided = groups.take("g", ended(0, True))
    assert decided is not None and decided.committed
    assert [s.index for s in decided.sessions] == [0, 2]
    assert not groups.open
    assert groups.take("g", ended(1, True)) is None, "it is decided once"
    with pytest.raises(ContractViolation, match="did not ask for"):
        groups.take("g", ended(4, True))


def test_a_group_whose_extras_are_not_enough_is_decided_by_the_last() -> None:
    groups = Groups(["g"], 2, 2, extra=1)
    assert groups.take("g", ended(0, True)) is None
    assert groups.take("g", ended(1, False)) is None
    decided = groups.take("g", ended(2, False))
    assert decided is not None and not decided.committed
