"""A batch's failures by reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollway_wire.batch import FailureReason
from rollway_wire.failures import Failure, FailureType

LISTED_GROUPS = 100
_PARTICULAR = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+(?:\.\d+)?")
"""Addresses, session ids and numbers: what differs between two failures for one reason."""


def reasons(failures: Iterable[tuple[str, Failure]]) -> list[FailureReason]:
    """(group id, failure) pairs, counted; the most frequent first."""
    found: dict[tuple[FailureType, str], tuple[str, list[str]]] = {}
    for group_id, failure in failures:
        reason = (failure.type, _PARTICULAR.sub("#", failure.message))
        found.setdefault(reason, (failure.message, []))[1].append(group_id)
    counted = [
        FailureReason(
            type=kind, message=message, rollouts=len(groups), group_ids=list(dict.fromkeys(groups))[:LISTED_GROUPS]
        )
        for (kind, _), (message, groups) in found.items()
    ]
    return sorted(counted, key=lambda r: -r.rollouts)
