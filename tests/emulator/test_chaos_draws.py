"""Chaos as dice: off without a switch, certain at one, repeatable by seed, each switch by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollway_emulator.chaos import Chaos, ChaosSpec

DRAWS: dict[str, Callable[[Chaos], Any]] = {
    "throttle": Chaos.throttles,
    "fail_start": Chaos.fails_start,
    "never_answer": Chaos.never_answers,
    "slow_start": Chaos.extra_start_s,
    "crash": Chaos.crash_after_s,
}
EXTRA = {"slow_start": {"seconds": 2.5}, "crash": {"after_s": 1.5}}
HIT = {"slow_start": 2.5, "crash": 1.5}
MISS = {"slow_start": 0.0, "crash": None}


def _chaos(name: str, probability: float, seed: int | None = None) -> Chaos:
    return Chaos(
        ChaosSpec.model_validate({"seed": seed, name: {"probability": probability, **EXTRA.get(name, {})}})
    )  # fmt: skip


def test_every_switch_is_drawn_here() -> None:
    assert set(DRAWS) == set(ChaosSpec.model_fields) - {"seed"}


@pytest.mark.parametrize("name", DRAWS)
def test_never_always_and_absent(name: str) -> None:
    hit, miss = HIT.get(name, True), MISS.get(name, False)
    assert all(DRAWS[name](Chaos(ChaosSpec())) == miss for _ in range(50))
    assert all(DRAWS[name](_chaos(name, 0)) == miss for _ in range(50))
    assert all(DRAWS[name](_chaos(name, 1)) == hit for _ in range(50))


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_and_other_switches_do_not_disturb_it(name: str) -> None:
    alone = _chaos(name, 0.5, seed=4)
    everything = {n: {"probability": 0.5, **EXTRA.get(n, {})} for n in DRAWS}
    crowded = Chaos(ChaosSpec.model_validate({"seed": 4, **everything}))
    expected = [DRAWS[name](alone) for _ in range(40)]
    seen = []
    for _ in range(40):
        for other in DRAWS:
            drawn = DRAWS[other](crowded)
            if other == name:
                seen.append(drawn)
    assert seen == expected
    assert len(set(expected)) == 2
