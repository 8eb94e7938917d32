"""What a saved result and its trajectory are worth. Pure.

In this order: an agent that raised is ``agent_error``; one that made no model call is ``no_turns``; a session whose
tokens are not whole is ``incomplete_capture``; one without usable rewards is ``agent_error`` where rewards are
required. The last is an agent's mistake when it happens now and then; when the first results of a batch are all like
that, the scheduler takes the set-up for broken (``contract_error``). In no case does a reward appear that the agent did
not return.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from pydantic import ValidationError

from rollway_dispatcher.step import Outcome
from rollway_wire.codec import load_packed, load_trajectory
from rollway_wire.failures import Failure, FailureType
from rollway_wire.problems import RollwayError
from rollway_wire.rollout import SavedResult
from rollway_wire.tokens import Trajectory

SHUT_DOWN = "cancelled"
"""The stop_reason with which the shim saves a rollout whose process is told to end."""


def _finite(text: str) -> float | str:
    """A number that JSON can carry on; one that overflows stays the text it was."""
    value = float(text)
    return value if math.isfinite(value) else text


def read_saved(raw: bytes) -> dict[str, Any]:
    """The saved object. NaN and infinities, which Python's json writes and JSON does not know, become strings.

    Raises:
        ValueError: not a JSON object with the shim's keys.
    """
    try:
        value = json.loads(raw, parse_constant=str, parse_float=_finite)
    except (ValueError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"the saved result is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise ValueError(f"the saved result is a JSON {type(value).__name__}, not an object")
    try:
        SavedResult.model_validate(value)
    except ValidationError as e:
        first = e.errors()[0]
        raise ValueError(f"the saved result's {'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    return value


def read_rewards(value: Any) -> list[float]:
    """``rewards`` as a list of finite numbers, one number made a list of one.

    Raises:
        ValueError: anything else.
    """
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("rewards is an empty list")
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int | float) or not abs(v) <= sys.float_info.max:
            shown = "missing" if v is None and not isinstance(value, list) else f"{v!r:.60}"
            raise ValueError(f"rewards must be a finite number or a list of them, got {shown}")
    return [float(v) for v in values]


def judge(
    saved: bytes,
    trajectory: bytes | None,
    *,
    session_id: str,
    captured: bool,
    require_rewards: bool,
    require_complete: bool = True,
) -> Outcome:
    """The outcome of a session whose result is saved.

    Args:
        trajectory: the packed tree the gateway sealed; None: the gateway no longer knows the session.
        captured: the batch has a gateway, so a trajectory is due.
        require_complete: and it must be whole.
    """
    try:
        value = read_saved(saved)
    except ValueError as e:
        return Outcome(Failure(type=FailureType.AGENT_ERROR, message=str(e)), trajectory=trajectory)
    result = {k: v for k, v in value.items() if k != "payload"}
    failure = _agent_failure(value) or (
        _capture_failure(trajectory, session_id, require_complete) if captured else None
    )
    if failure is not None:
        return Outcome(failure, result=result, trajectory=trajectory)
    try:
        rewards = read_rewards(value.get("rewards"))
    except ValueError as e:
        if not require_rewards:
            return Outcome(None, result=result, trajectory=trajectory)
        failure = Failure(type=FailureType.AGENT_ERROR, message=f"the agent returned no usable rewards: {e}")
        return Outcome(failure, result=result, trajectory=trajectory, rewardless=True)
    return Outcome(None, rewards, result, trajectory)


def _agent_failure(value: dict[str, Any]) -> Failure | None:
    if value["status_code"] == 200:
        return None
    if value["stop_reason"] == SHUT_DOWN:
        message = "the agent was shut down while it ran, by its runtime or its host"
        return Failure(type=FailureType.AGENT_DIED, message=message, traceback=value.get("traceback"))
    message = f"the agent raised (status {value['status_code']}): {value['stop_reason']}"
    return Failure(type=FailureType.AGENT_ERROR, message=message, traceback=value.get("traceback"))


def _capture_failure(packed: bytes | None, session_id: str, require_complete: bool) -> Failure | None:
    if packed is None:
        return Failure(type=FailureType.INCOMPLETE_CAPTURE, message="the gateway does not know the session any more")
    try:
        trajectory: Trajectory = load_trajectory(load_packed(packed))
    except RollwayError as e:
        return Failure(type=FailureType.INCOMPLETE_CAPTURE, message=f"the gateway's trajectory is not one: {e.detail}")
    if trajectory.session_id != session_id:
        message = f"the gateway answered with the trajectory of session {trajectory.session_id}"
        return Failure(type=FailureType.INCOMPLETE_CAPTURE, message=message)
    if not trajectory.turns:
        message = "the agent made no model call through the gateway: does it use _rollout.base_url?"
        return Failure(type=FailureType.NO_TURNS, message=message)
    if not require_complete:
        return None
    if trajectory.incomplete is not None:
        return Failure(type=FailureType.INCOMPLETE_CAPTURE, message=trajectory.incomplete)
    if not trajectory.sequences:
        return Failure(
            type=FailureType.INCOMPLETE_CAPTURE, message="no sequence can be trained: every turn is incomplete"
        )
    return None
