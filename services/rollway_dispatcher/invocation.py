"""What the agent is sent, and what it must answer. Pure."""

from __future__ import annotations

import functools
from typing import Any

import orjson
from pydantic import ValidationError

from rollway_dispatcher.order import Order
from rollway_kit.keys import KeyRing
from rollway_wire.failures import Failure, FailureType
from rollway_wire.gateway import SessionTicket
from rollway_wire.ids import result_key
from rollway_wire.rollout import ROLLOUT_KEY, Receipt, ReportTarget

REPORT_KEY_LIFE_S = 9 * 3600.0
"""Longer than a runtime lets a rollout live."""


@functools.lru_cache(maxsize=4)
def report_keys(secret: bytes) -> KeyRing:
    """Of the bearer keys of sessions' reports: signed, so they need not be stored and are good after a restart."""
    return KeyRing([secret])


def invocation(
    order: Order, group_id: str, row: dict[str, Any], ticket: SessionTicket | None, report: ReportTarget | None
) -> bytes:
    """The request body: the row's fields at top level plus ``_rollout`` (`rollway_wire.rollout.RolloutConfig`)."""
    config: dict[str, Any] = {
        **order.rollout,
        "exp_id": order.exp_id,
        "input_id": group_id,
        "s3_bucket": order.s3_bucket,
        "model_id": order.model_id,
        "sampling_params": order.sampling_params,
    }
    if ticket is not None:
        config |= {"base_url": ticket.base_url, "api_key": ticket.api_key}
    if report is not None:
        config["report"] = report.model_dump()
    return orjson.dumps({**row, ROLLOUT_KEY: config})


def check_receipt(answer: bytes, order: Order, group_id: str, session_id: str) -> Failure | None:
    """What is wrong with an agent's immediate answer; None: nothing. A wrong answer is a broken set-up."""
    expected = result_key(order.exp_id, group_id, session_id)
    try:
        receipt = Receipt.model_validate_json(answer)
    except ValidationError:
        message = (
            f"the agent did not answer with a receipt: is its entrypoint a rollout_entrypoint? Got {answer[:200]!r}"
        )
        return Failure(type=FailureType.CONTRACT_ERROR, message=message)
    if receipt.result_key != expected:
        message = f"the agent will save its result at {receipt.result_key!r}, not at {expected!r}"
        return Failure(type=FailureType.CONTRACT_ERROR, message=message)
    return None
