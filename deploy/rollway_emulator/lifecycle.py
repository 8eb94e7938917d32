"""A session's life as data: which event leads where, and what must then be done to its processes.

Rules the table keeps:

- Only a STARTING or READY session takes calls; from STOPPING on, the same id begins a fresh session.
- Every way out passes through STOPPING, where the process tree is killed, and ends in ENDED once none of it lives.
- A kill may overtake a polite stop (TERMINATE, then KILL), never the other way round.
- The first event that ends a session is its reason; later ones do not rewrite it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    STARTING = "starting"
    """The container is being started; calls wait."""
    READY = "ready"
    """/ping has answered; calls are forwarded."""
    STOPPING = "stopping"
    """Its processes are being ended."""
    ENDED = "ended"
    """No process of it lives."""


class Event(StrEnum):
    PING_OK = "ping_ok"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    EXITED = "exited"
    STOP = "stop"
    IDLE = "idle"
    LIFETIME = "lifetime"
    KILLED = "killed"
    CRASHED = "crashed"
    SHUTDOWN = "shutdown"
    CLEARED = "cleared"


class Action(StrEnum):
    NONE = "none"
    TERMINATE = "terminate"
    """SIGTERM to the group, the grace, then SIGKILL to all that is left."""
    KILL = "kill"
    """SIGKILL to all of it, now."""


TABLE: dict[tuple[State, Event], tuple[State, Action]] = {
    (State.STARTING, Event.PING_OK): (State.READY, Action.NONE),
    (State.STARTING, Event.START_FAILED): (State.STOPPING, Action.KILL),
    (State.STARTING, Event.START_TIMEOUT): (State.STOPPING, Action.KILL),
    (State.STARTING, Event.EXITED): (State.STOPPING, Action.KILL),
    (State.STARTING, Event.STOP): (State.STOPPING, Action.TERMINATE),
    (State.STARTING, Event.LIFETIME): (State.STOPPING, Action.TERMINATE),
    (State.STARTING, Event.KILLED): (State.STOPPING, Action.KILL),
    (State.STARTING, Event.SHUTDOWN): (State.STOPPING, Action.TERMINATE),
    (State.READY, Event.EXITED): (State.STOPPING, Action.KILL),
    (State.READY, Event.STOP): (State.STOPPING, Action.TERMINATE),
    (State.READY, Event.IDLE): (State.STOPPING, Action.TERMINATE),
    (State.READY, Event.LIFETIME): (State.STOPPING, Action.TERMINATE),
    (State.READY, Event.KILLED): (State.STOPPING, Action.KILL),
    (State.READY, Event.CRASHED): (State.STOPPING, Action.KILL),
    (State.READY, Event.SHUTDOWN): (State.STOPPING, Action.TERMINATE),
    (State.STOPPING, Event.EXITED): (State.STOPPING, Action.NONE),
    (State.STOPPING, Event.STOP): (State.STOPPING, Action.NONE),
    (State.STOPPING, Event.SHUTDOWN): (State.STOPPING, Action.NONE),
    (State.STOPPING, Event.KILLED): (State.STOPPING, Action.KILL),
    (State.STOPPING, Event.CLEARED): (State.ENDED, Action.NONE),
    (State.ENDED, Event.EXITED): (State.ENDED, Action.NONE),
    (State.ENDED, Event.STOP): (State.ENDED, Action.NONE),
    (State.ENDED, Event.KILLED): (State.ENDED, Action.NONE),
    (State.ENDED, Event.SHUTDOWN): (State.ENDED, Action.NONE),
}

TAKES_CALLS = frozenset({State.STARTING, State.READY})


def step(state: State, event: Event) -> tuple[State, Action]:
    """The next state and what to do to the processes.

    Raises:
        ValueError: the event cannot happen in this state.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise ValueError(f"a session that is {state} cannot see {event}") from None


@dataclass(frozen=True, slots=True)
class Limits:
    """When a session ends by itself, in seconds."""

    idle_timeout_s: float
    lifetime_s: float


def due(limits: Limits, *, now: float, started: float, last_active: float, calls_in_flight: int) -> Event | None:
    """The limit a READY session has reached, or None. Lifetime wins; a call in flight is never idle.

    ``last_active`` is the last moment a call ended or /ping said HealthyBusy.
    """
    if now - started >= limits.lifetime_s:
        return Event.LIFETIME
    if calls_in_flight == 0 and now - last_active >= limits.idle_timeout_s:
        return Event.IDLE
    return None
