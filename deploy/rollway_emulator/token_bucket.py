"""The rate limit as a token bucket, without a clock of its own."""

from __future__ import annotations


class TokenBucket:
    """Lets ``burst`` calls through at once and ``rate`` a second after that.

    Over any window of T seconds at most ``burst + rate * T`` calls pass. A refused call costs nothing.

    Raises:
        ValueError: rate not positive, or a burst that could never hold one token.
    """

    def __init__(self, rate: float, burst: float) -> None:
        if rate <= 0:
            raise ValueError(f"rate must be positive, got {rate}")
        if burst < 1:
            raise ValueError(f"burst must be at least 1, got {burst}")
        self.rate = rate
        self.burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Spend one token if there is one. ``now``: seconds on a clock that never goes back."""
        if self._at is not None:
            self._tokens = min(self.burst, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now if self._at is None else max(self._at, now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
