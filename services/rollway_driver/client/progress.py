"""A progress bar over results (extra ``progress``: tqdm, which draws in terminals and notebooks alike)."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self


class Bar:
    """How many of a batch's rollouts are done, how many failed, and their mean reward. ``with`` ends it.

    Raises:
        ImportError: tqdm is not installed.
    """

    def __init__(self, total: int, done: int = 0, *, shown: bool = True) -> None:
        """
        Args:
            shown: False draws nothing and needs nothing.
        """
        self._bar: Any = None
        self._failed = self._scored = 0
        self._sum = 0.0
        if shown:
            try:
                from tqdm.auto import tqdm
            except ImportError as e:
                raise ImportError("progress bars need tqdm: pip install 'rollway[progress]'") from e
            self._bar = tqdm(total=total, initial=done, unit="rollout")

    def add(self, rewards: list[float] | None, *, failed: bool) -> None:
        """One more is done."""
        if self._bar is None:
            return
        self._failed += failed
        if rewards:
            self._scored += 1
            self._sum += rewards[-1]
        shown = {"failed": self._failed} | ({"reward": f"{self._sum / self._scored:.3f}"} if self._scored else {})
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave it as it stands. Safe to call twice."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
