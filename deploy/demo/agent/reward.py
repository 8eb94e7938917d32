"""The reward of one answer: right or wrong, and a little for its form.

    0.80   the final number equals the expected one
    0.10   the final number stands after "####", as asked for
    0.05   times how close the number is: 1 - |given - expected| / max(1, |expected|), not below 0
    0.05   times how brief the answer is: 1 when it holds nothing but the number, falling with each further character

The last three are shaping: a small model that is never right still sees which of its answers was better. They look at
the text alone. A call that failed has no text to score: it raises, and the rollout is an error, never a low reward.
"""

from __future__ import annotations

import re
from typing import Any

from rollway_shim import RewardFunction

_NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)


def number(text: str) -> float:
    """A number as people write it: "1,234", "$5", "-2.50".

    Raises:
        ValueError: not a number.
    """
    return float(text.replace(",", "").replace("$", "").strip())


def final_number(text: str) -> tuple[float | None, bool]:
    """The number after the last "####", else the last number; and whether it was marked so."""
    marked = _MARKED.findall(text)
    found = marked or _ANY.findall(text)
    return (number(found[-1]) if found else None), bool(marked)


class ArithmeticReward(RewardFunction):
    def __call__(self, *, response_text: str = "", ground_truth: str = "", **_: Any) -> float:
        """0.0 to 1.0, by the table above.

        Raises:
            ValueError: the expected answer is not a number.
        """
        expected = number(ground_truth)
        given, marked = final_number(response_text)
        if given is None:
            return 0.0
        miss = abs(given - expected)
        close = max(0.0, 1.0 - miss / max(1.0, abs(expected)))
        extra = max(0, len(response_text.strip()) - len(f"#### {ground_truth.strip()}"))
        return round(0.8 * (miss < 1e-6) + 0.1 * marked + 0.05 * close + 0.05 / (1 + extra / 20), 6)
