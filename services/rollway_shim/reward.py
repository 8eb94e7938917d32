"""The shape of a reward function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class RewardFunction(ABC):
    """Scores one rollout. Subclass it and implement `__call__`; the app does the rest."""

    @abstractmethod
    def __call__(self, **kwargs: Any) -> float | list[float]:
        """Return the reward: one number, or a list of numbers (one for the outcome, or one a turn).

        ``kwargs`` are the caller's to choose: ``response_text``, ``ground_truth``, ``user_input`` and the like.
        """
