"""Arithmetic tasks made here: no download, any number, the same for the same seed on every machine.

Three levels are mixed, so that a small model gets some right and some wrong, and a group's rewards differ: without a
difference within groups GRPO has nothing to learn. ``data_source`` is ``arithmetic/{level}``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from rollway_driver.data.errors import DataError
from rollway_driver.data.row import Row

MIX = {"easy": 4, "medium": 4, "hard": 2}
"""Shares of the levels."""
TRIES = 50
"""Draws of a level before it counts as used up and the next one is drawn: there are but some 600 easy questions."""


def _easy(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    return (f"{a} + {b}", a + b) if rng.random() < 0.5 else (f"{max(a, b)} - {min(a, b)}", abs(a - b))


def _medium(rng: random.Random) -> tuple[str, int]:
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.randint(21, 99), rng.randint(21, 99)
        return f"{a} + {b}", a + b
    if kind == 1:
        a, b = rng.randint(21, 99), rng.randint(21, 99)
        return f"{max(a, b)} - {min(a, b)}", abs(a - b)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    return (f"{a} * {b}", a * b) if kind == 2 else (f"{a * b} / {b}", a)


def _hard(rng: random.Random) -> tuple[str, int]:
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(3, 99)
    kind = rng.randrange(3)
    if kind == 0:
        return f"({a} + {b}) * {c}", (a + b) * c
    if kind == 1:
        return f"{a} * {b} - {c}", a * b - c
    return f"{a * c} / {c} + {b}", a + b


LEVELS: dict[str, Callable[[random.Random], tuple[str, int]]] = {"easy": _easy, "medium": _medium, "hard": _hard}
"""From the smallest space of questions to the largest."""


def splits(train: int, val: int, seed: int, mix: Mapping[str, int] = MIX) -> tuple[list[Row], list[Row]]:
    """Training and validation rows; no question occurs twice, in either or across both.

    The validation rows depend on ``val``, ``seed`` and ``mix`` alone, and fewer training rows are a prefix of more.

    Raises:
        DataError: a negative count.
    """
    if train < 0 or val < 0:
        raise DataError(f"row counts must be 0 or more, got {train} training and {val} validation rows")
    seen: set[str] = set()
    val_rows = list(islice(_rows(random.Random(f"arithmetic/val/{seed}"), seen, mix), val))
    return list(islice(_rows(random.Random(f"arithmetic/train/{seed}"), seen, mix), train)), val_rows


def _rows(rng: random.Random, seen: set[str], mix: Mapping[str, int]) -> Iterator[Row]:
    while True:
        level, expression, value = _fresh(rng, seen, mix)
        seen.add(expression)
        yield Row(f"What is {expression}?", str(value), f"arithmetic/{level}")


def _fresh(rng: random.Random, seen: set[str], mix: Mapping[str, int]) -> tuple[str, str, int]:
    names = [name for name in LEVELS if name in mix]
    drawn = rng.choices(names, weights=[mix[name] for name in names])[0]
    for level in names[names.index(drawn) :]:
        for _ in range(TRIES):
            expression, value = LEVELS[level](rng)
            if expression not in seen:
                return level, expression, value
    raise DataError(f"no new arithmetic question after {len(seen)}: ask for fewer rows")
