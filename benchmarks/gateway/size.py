"""How much a suite measures."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

Numbers = dict[str, float | int | None]
"""What a suite found, by name; None where it does not apply."""


@dataclass(frozen=True)
class Size:
    """Bounded in calls, and in seconds per load."""

    calls: int = 800
    streams: int = 64
    context_calls: int = 32
    contexts: tuple[int, ...] = (4096, 16384, 65536, 131072)
    in_flight: tuple[int, ...] = (32, 200, 1000)
    sessions: int = 400
    turns: int = 4
    turn_sessions: int = 8
    turns_measured: int = 6
    """Of each context."""
    rendered: int = 131072
    """Tokens of each prompt that is rendered while the loop is watched."""
    scale_calls: int = 2000
    load_s: float = 45.0


QUICK = Size(
    calls=64, streams=8, context_calls=8, contexts=(4096,), in_flight=(32,), sessions=40, turns=2, turn_sessions=2,
    turns_measured=2, rendered=8192, scale_calls=64, load_s=20.0,
)  # fmt: skip


def quantile(values: list[float], q: float) -> float | None:
    if not values:
        return None
    return statistics.quantiles(values, n=1000, method="inclusive")[int(q * 1000) - 1] if len(values) > 1 else values[0]
