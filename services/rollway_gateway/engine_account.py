"""The tokens of one engine, as its answers to us tell them and as it counts them itself. Pure state.

    engine = captured + cut_off + foreign - uncounted

Compared only while the engine has nothing to do and no call of ours is there: only then do both speak of the same.
"""

from __future__ import annotations

from rollway_gateway.engine_count import EngineCount
from rollway_wire.gateway import WorkerLedger


class EngineAccount:
    """From one reading of the counter on, for as long as the engine counts on from there."""

    def __init__(self, count: EngineCount, *, now: float) -> None:
        """
        Args:
            count: read while no call of ours was there.
            now: Unix time.
        """
        self._began, self.since = count.began, now
        self._first = self._last = count.tokens
        self.captured = self.besides = self.unbounded = 0
        """Everything `add` was given: tokens, bounds, and how often there was none."""
        self._fresh = 0
        """Captured since the last comparison."""
        self._uncertain: int | None = 0
        """Tokens that may have been sampled besides, since then; None: any number."""
        self._cut_off = self._foreign = self._uncounted = 0
        self._as_of: float | None = None

    def add(self, tokens: int, *, besides: int | None) -> None:
        """A request of ours has ended.

        Args:
            tokens: sampled for it, as its answer told.
            besides: how many more it may have been, where the answer was not read to its end; None: any number.
        """
        self.captured += tokens
        self.besides += besides or 0
        self.unbounded += besides is None
        self._fresh += tokens
        self._uncertain = None if self._uncertain is None or besides is None else self._uncertain + besides

    @property
    def stale(self) -> bool:
        """Something was sampled since the last comparison, or there was none."""
        return self._as_of is None or self._fresh > 0 or self._uncertain != 0

    def continued_by(self, count: EngineCount) -> bool:
        """The engine counts on from where it was; else it was started anew."""
        return count.tokens >= self._last and count.began == self._began

    def agrees(self, count: EngineCount) -> bool:
        """To the token, with nothing unknown."""
        return self._uncertain == 0 and count.tokens - self._last == self._fresh

    def compare(self, count: EngineCount, *, now: float) -> str | None:
        """Take a reading; what does not add up since the last one, or None."""
        besides = count.tokens - self._last - self._fresh
        explained = max(0, besides if self._uncertain is None else min(besides, self._uncertain))
        foreign, uncounted = max(0, besides - explained), max(0, -besides)
        self._cut_off += explained
        self._foreign += foreign
        self._uncounted += uncounted
        fresh, self._last, self._fresh, self._uncertain, self._as_of = self._fresh, count.tokens, 0, 0, now
        if foreign:
            return f"the engine counts {foreign} tokens more than the {fresh + explained} of our calls"
        if uncounted:
            return f"the engine counts {uncounted} tokens fewer than the {fresh} captured from it"
        return None

    def state(self) -> WorkerLedger:
        compared = self._as_of is not None
        engine = self._last - self._first
        return WorkerLedger(
            since=self.since, captured=self.captured, engine=engine if compared else None,
            difference=engine - (self.captured - self._fresh) if compared else None,
            closes=not self._foreign and not self._uncounted if compared else None,
            cut_off=self._cut_off, foreign=self._foreign, uncounted=self._uncounted, as_of=self._as_of,
            pending=self._fresh, uncertain=self._uncertain,
        )  # fmt: skip
