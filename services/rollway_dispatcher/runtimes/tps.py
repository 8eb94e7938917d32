"""The rate that invoke and stop share, per runtime ARN."""

from __future__ import annotations

from aiolimiter import AsyncLimiter


class TpsBudgets:
    """One limiter per ARN. Batches that name different limits for one ARN share the lowest."""

    def __init__(self) -> None:
        self._limiters: dict[str, tuple[float, AsyncLimiter]] = {}

    def of(self, arn: str, tps: float) -> AsyncLimiter:
        """The ARN's limiter: calls evenly spaced, since a burst at the full rate would be throttled by the service's
        own one-second window."""
        known = self._limiters.get(arn)
        if known is None or tps < known[0]:
            known = (tps, AsyncLimiter(1, 1 / tps))
            self._limiters[arn] = known
        return known[1]
