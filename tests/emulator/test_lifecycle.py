"""The session table, exhaustively: every state meets every event."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollway_emulator.lifecycle import TABLE, TAKES_CALLS, Action, Event, Limits, State, due, step

ENDINGS = [event for event in Event if event not in (Event.PING_OK, Event.CLEARED)]
FROM_OUTSIDE = [Event.STOP, Event.KILLED, Event.SHUTDOWN]
POLITE = {Event.STOP, Event.IDLE, Event.LIFETIME, Event.SHUTDOWN}

ONLY_WHILE_STARTING = [Event.PING_OK, Event.START_FAILED, Event.START_TIMEOUT]
ONLY_WHILE_READY = [Event.IDLE, Event.CRASHED]
IMPOSSIBLE = {
    *product([State.STARTING], [*ONLY_WHILE_READY, Event.CLEARED]),
    *product([State.READY], [*ONLY_WHILE_STARTING, Event.CLEARED]),
    *product([State.STOPPING], [*ONLY_WHILE_STARTING, *ONLY_WHILE_READY, Event.LIFETIME]),
    *product([State.ENDED], [*ONLY_WHILE_STARTING, *ONLY_WHILE_READY, Event.LIFETIME, Event.CLEARED]),
}


def test_every_pair_is_either_in_the_table_or_impossible() -> None:
    assert set(product(State, Event)) == set(TABLE) | IMPOSSIBLE
    assert not set(TABLE) & IMPOSSIBLE


@pytest.mark.parametrize(("state", "event"), sorted(IMPOSSIBLE))
def test_an_impossible_event_is_refused_by_name(state: State, event: Event) -> None:
    with pytest.raises(ValueError, match=f"{state} cannot see {event}"):
        step(state, event)


@pytest.mark.parametrize("state", sorted(TAKES_CALLS))
@pytest.mark.parametrize("event", ENDINGS)
def test_a_living_session_ends_politely_only_when_asked_or_due(state: State, event: Event) -> None:
    if (state, event) in IMPOSSIBLE:
        return
    action = Action.TERMINATE if event in POLITE else Action.KILL
    assert step(state, event) == (State.STOPPING, action)


@pytest.mark.parametrize(("state", "event"), list(product(State, FROM_OUTSIDE)))
def test_what_comes_from_outside_is_never_impossible(state: State, event: Event) -> None:
    step(state, event)


@given(st.lists(st.sampled_from(list(Event)), max_size=12))
def test_no_walk_returns_to_life(events: list[Event]) -> None:
    order = list(State)
    state = State.STARTING
    for event in events:
        if (state, event) in TABLE:
            reached, _ = step(state, event)
            assert order.index(reached) >= order.index(state)
            state = reached


@given(st.lists(st.sampled_from(list(Event)), max_size=12))
def test_a_kill_is_never_softened(events: list[Event]) -> None:
    state, worst = State.STARTING, Action.NONE
    for event in events:
        if (state, event) in TABLE:
            state, action = step(state, event)
            if worst is Action.KILL:
                assert action is not Action.TERMINATE
            worst = action if action is not Action.NONE else worst


LIMITS = Limits(idle_timeout_s=10, lifetime_s=100)


@pytest.mark.parametrize(
    ("now", "last_active", "calls", "event"),
    [
        (9.9, 0, 0, None),
        (10, 0, 0, Event.IDLE),
        (10, 0, 1, None),
        (50, 45, 0, None),
        (99, 0, 3, None),
        (99, 0, 0, Event.IDLE),
        (100, 99, 1, Event.LIFETIME),
        (100, 0, 0, Event.LIFETIME),
    ],
)
def test_when_a_session_is_due(now: float, last_active: float, calls: int, event: Event | None) -> None:
    assert due(LIMITS, now=now, started=0, last_active=last_active, calls_in_flight=calls) is event
