"""An engine's own count of the tokens it sampled, out of its /metrics in Prometheus' text form.

The names are vLLM's (0.28 to 0.32). It counts a token when it hands it on, also of a request that is aborted later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABELS = rb'(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?'


def metric(name: bytes) -> re.Pattern[bytes]:
    """Finds a metric's values, whatever its labels."""
    return re.compile(rb"^" + name + _LABELS + rb"[ \t]+(\S+)", re.MULTILINE)


_TOKENS = metric(rb"vllm:generation_tokens_total")
_BEGAN = metric(rb"vllm:generation_tokens_created")
_BUSY = metric(rb"vllm:num_requests_(?:running|waiting)")


@dataclass(frozen=True, slots=True)
class EngineCount:
    tokens: int
    """Sampled since it began to count, over all its engines and models."""
    began: float | None
    """Unix time; None: it does not say."""
    busy: bool
    """Requests run or wait."""


def read_count(metrics: bytes) -> EngineCount | None:
    """None: there is no such counter, or no number in it."""
    try:
        tokens, began, busy = ([float(n) for n in found.findall(metrics)] for found in (_TOKENS, _BEGAN, _BUSY))
        return EngineCount(int(sum(tokens)), max(began, default=None), any(busy)) if tokens else None
    except (ValueError, OverflowError):  # not a number, NaN, infinite
        return None
