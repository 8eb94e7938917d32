"""What the clients raise beyond `rollway_wire.problems`.

    RollwayError
    ├── BadGateway
    │   └── DamagedAnswer   a 2xx answer that cannot be read: cut short, wrong checksum, not this API
    └── RolloutFailed       a rollout ended without a result of its own; carries the `Failure`
    ClientClosed            (RuntimeError) the client was closed before the result came

Problem answers of a service are raised as the `rollway_wire.problems` class of their status; a service that cannot be
reached within the retry deadline as `Unavailable`, one that answers too late as `GatewayTimeout`.
"""

from __future__ import annotations

from typing import Any

from rollway_wire.failures import Failure
from rollway_wire.problems import BadGateway, RollwayError


class DamagedAnswer(BadGateway):
    """A successful status whose body is not what the API promises."""

    code = "damaged_answer"


class RolloutFailed(RollwayError):
    """A rollout failed and its agent saved no error of its own.

    ``failure`` says why; ``result`` is what the agent saved, if it saved anything (a result that may not train, say).
    """

    status, code = 502, "rollout_failed"

    def __init__(self, failure: Failure, result: dict[str, Any] | None = None) -> None:
        super().__init__(f"{failure.type}: {failure.message}")
        self.failure = failure
        self.result = result


class ClientClosed(RuntimeError):
    """The `RolloutClient` was closed while this rollout ran. The rollout itself goes on at the dispatcher."""
