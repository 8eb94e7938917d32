"""A batch's results as a stream that outlives its connections. No I/O: the clients read lines and sleep.

A stream says itself when the batch has ended. One that stops before that was cut, and is taken up again at the cursor
of the last result; so each result comes once, whatever the network does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from rollway_driver.client.call import Call, nothing, segment
from rollway_driver.client.dispatcher_calls import finished_rollout
from rollway_driver.client.errors import DamagedAnswer
from rollway_driver.client.retry import Attempts, RetryPolicy
from rollway_wire.batch import EVENTS, NDJSON, RolloutResult
from rollway_wire.problems import BadRequest, RollwayError, Unavailable, from_problem
from rollway_wire.tokens import Trajectory

Form = Literal["ndjson", "events"]
_MEDIA_TYPE: dict[Form, str] = {"ndjson": NDJSON, "events": EVENTS}
SILENCE_S = 60.0
"""A stream shows a sign of life every 15 seconds; without one for so long its connection is dead."""


class StreamedRollout(NamedTuple):
    """One result of a stream."""

    cursor: int
    """Follow from here to get what comes after it."""
    rollout: RolloutResult
    trajectory: Trajectory | None
    """None: nothing was captured, or it was not asked for."""


@dataclass(slots=True)
class Following:
    """One batch being followed: where it is, and what its lines mean."""

    batch_id: str
    cursor: int
    trajectories: bool
    form: Form
    policy: RetryPolicy
    ended: bool = False
    _attempts: Attempts = field(init=False)
    _event: dict[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.policy)

    def call(self) -> Call[None]:
        """What to send now, the first time and after each cut."""
        self._event = {}
        return Call(
            "GET",
            f"/v1/batches/{segment(self.batch_id)}/results",
            nothing,
            params={"cursor": self.cursor, "trajectories": str(self.trajectories).lower()},
            headers={"accept": _MEDIA_TYPE[self.form]},
            timeout_s=SILENCE_S,
        )

    def take(self, line: bytes) -> Iterator[StreamedRollout]:
        """The result that a line completes, if it does.

        Raises:
            RollwayError: the dispatcher's problem, or `DamagedAnswer`.
        """
        document = self._document(line)
        if document is None:
            return
        try:
            if "problem" in document:
                problem = document["problem"]
                raise from_problem(int(problem["status"]), problem)
            if document.get("finished"):
                self.ended = True
                return
            found = finished_rollout(document)
            self.cursor, self._attempts = int(document["cursor"]), Attempts(self.policy)
        except (BadRequest, ValueError, KeyError, TypeError) as e:
            raise DamagedAnswer(f"batch {self.batch_id}: a line of its results cannot be read: {e!s:.300}") from e
        yield StreamedRollout(self.cursor, found.rollout, found.trajectory)

    def failed(self, error: RollwayError | None) -> float:
        """Seconds to wait before it is taken up again; ``error`` None: the connection just ended.

        Raises:
            RollwayError: taking it up again cannot help, or no longer.
        """
        return self._attempts.after(error or Unavailable(f"batch {self.batch_id}: its stream was cut"))

    def _document(self, line: bytes) -> dict[str, Any] | None:
        line = line.removesuffix(b"\r")
        if self.form == "ndjson":
            return _json(line) if line else None
        if line:
            name, _, value = line.partition(b":")
            self._event[name] = value.removeprefix(b" ")
            return None
        event, self._event = self._event, {}
        match event.get(b"event"):
            case b"result":
                return _json(event.get(b"data", b"")) | {"cursor": event.get(b"id", b"")}
            case b"finished":
                return {"finished": True}
            case b"problem":
                return {"problem": _json(event.get(b"data", b""))}
        return None


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise DamagedAnswer(f"a line of a stream is not JSON: {text[:80]!r}") from e
    if not isinstance(value, dict):
        raise DamagedAnswer(f"a line of a stream is no object: {text[:80]!r}")
    return value
