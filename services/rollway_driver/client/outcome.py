"""What a finished rollout gives the caller: the dict its agent saved, or an exception that says why there is none."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

from rollway_driver.client.dispatcher_calls import FinishedRollout
from rollway_driver.client.errors import DamagedAnswer, RolloutFailed
from rollway_wire.batch import RolloutState
from rollway_wire.failures import FailureType


def saved_result(finished: FinishedRollout) -> dict[str, Any]:
    """The saved result: of a success, or of an agent that raised (``status_code`` 500, ``stop_reason``, ``traceback``).

    Raises:
        CancelledError: the rollout was cancelled.
        RolloutFailed: it failed otherwise.
        DamagedAnswer: it is said to have succeeded without a result, or failed without a failure.
    """
    rollout = finished.rollout
    if rollout.state is RolloutState.CANCELLED:
        raise CancelledError(f"rollout {rollout.rollout_id} was cancelled")
    if rollout.failure is not None:
        if rollout.failure.type is FailureType.AGENT_ERROR and rollout.result is not None:
            return rollout.result
        raise RolloutFailed(rollout.failure, rollout.result)
    if rollout.state is not RolloutState.SUCCEEDED or rollout.result is None:
        raise DamagedAnswer(f"rollout {rollout.rollout_id} is {rollout.state} with neither result nor failure")
    return rollout.result
