"""A rollout's life as data: what may happen in each state, where it leads and what must then be done.

Rules, which the table below keeps and ``tests/dispatcher/test_lifecycle.py`` walks through exhaustively:

1. A runtime is asked to start a session only on the way into STARTING, and only after STARTING is on disk.
2. A rollout leaves STARTING, RUNNING or COLLECTING for anything but the next of them only with STOP: no session is left
   running unless the runtime itself refused it (REFUSED: nothing was started, the session id is kept).
3. Every way into a terminal state does PUBLISH, once, and nothing leads out of a terminal state: one result each.
4. A suspected death or time-out goes through COLLECTING: S3 is asked once more before anything is declared failed.
5. A result that exists wins: NOTICED leads to COLLECTING from every state in which the session is the current one.
6. What arrives late (the receipt after the result, a second ``done``) changes nothing; what cannot happen is an error.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import NamedTuple

from rollway_wire.batch import TERMINAL, RolloutState
from rollway_wire.problems import ContractViolation

S = RolloutState


class Trigger(StrEnum):
    """What can happen to a rollout."""

    ADMITTED = "admitted"
    """The budgets have room for it."""
    INVOKED = "invoked"
    """The runtime answered with a receipt."""
    REFUSED = "refused"
    """The runtime had no room for now (rate, quota); nothing was started."""
    START_RETRIED = "start_retried"
    """Starting failed; another attempt follows."""
    START_FAILED = "start_failed"
    """Starting failed for good."""
    NOTICED = "noticed"
    """The result exists: the agent reported ``done``, or a listing shows its key."""
    SUSPECTED = "suspected"
    """No more heartbeats, the process is gone, or the time is up."""
    COLLECTED = "collected"
    """Result and tokens are here and whole."""
    RESULT_RETRIED = "result_retried"
    """There is no usable result; another attempt follows."""
    RESULT_FAILED = "result_failed"
    """There is no usable result, for good."""
    CANCELLED = "cancelled"
    """By request, or because the batch failed."""


class Duty(StrEnum):
    """What a move obliges us to do, after it is on disk."""

    START = "start"
    WATCH = "watch"
    COLLECT = "collect"
    STOP = "stop"
    PUBLISH = "publish"


class Move(NamedTuple):
    to: RolloutState
    duties: tuple[Duty, ...] = ()


T, D = Trigger, Duty

TABLE: dict[tuple[RolloutState, Trigger], Move] = {
    (S.PENDING, T.ADMITTED): Move(S.STARTING, (D.START,)),
    (S.PENDING, T.NOTICED): Move(S.COLLECTING, (D.COLLECT,)),
    (S.PENDING, T.CANCELLED): Move(S.CANCELLED, (D.PUBLISH,)),
    (S.STARTING, T.INVOKED): Move(S.RUNNING, (D.WATCH,)),
    (S.STARTING, T.REFUSED): Move(S.PENDING),
    (S.STARTING, T.START_RETRIED): Move(S.PENDING, (D.STOP,)),
    (S.STARTING, T.START_FAILED): Move(S.FAILED, (D.STOP, D.PUBLISH)),
    (S.STARTING, T.NOTICED): Move(S.COLLECTING, (D.COLLECT,)),
    (S.STARTING, T.CANCELLED): Move(S.CANCELLED, (D.STOP, D.PUBLISH)),
    (S.RUNNING, T.NOTICED): Move(S.COLLECTING, (D.COLLECT,)),
    (S.RUNNING, T.SUSPECTED): Move(S.COLLECTING, (D.COLLECT,)),
    (S.RUNNING, T.CANCELLED): Move(S.CANCELLED, (D.STOP, D.PUBLISH)),
    (S.COLLECTING, T.COLLECTED): Move(S.SUCCEEDED, (D.STOP, D.PUBLISH)),
    (S.COLLECTING, T.RESULT_RETRIED): Move(S.PENDING, (D.STOP,)),
    (S.COLLECTING, T.RESULT_FAILED): Move(S.FAILED, (D.STOP, D.PUBLISH)),
    (S.COLLECTING, T.CANCELLED): Move(S.CANCELLED, (D.STOP, D.PUBLISH)),
}

_OVERTAKEN = (T.INVOKED, T.REFUSED, T.START_RETRIED, T.START_FAILED, T.NOTICED, T.SUSPECTED)

LATE: frozenset[tuple[RolloutState, Trigger]] = frozenset(
    {(S.COLLECTING, t) for t in _OVERTAKEN} | set(product(TERMINAL, set(Trigger) - {T.ADMITTED}))
)
"""News that something faster has overtaken; ignored."""

IMPOSSIBLE: frozenset[tuple[RolloutState, Trigger]] = frozenset(product(RolloutState, Trigger)) - LATE - TABLE.keys()
"""A bug of ours if it is ever seen."""


def next_move(state: RolloutState, trigger: Trigger) -> Move | None:
    """The move, or None for news that comes too late to matter.

    Raises:
        ContractViolation: the trigger cannot happen in this state.
    """
    move = TABLE.get((state, trigger))
    if move is None and (state, trigger) not in LATE:
        raise ContractViolation(f"a {state} rollout cannot be {trigger}")
    return move
