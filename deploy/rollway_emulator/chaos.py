"""Chaos switches: faults of the real service, drawn by chance and repeatable by seed."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Switch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    probability: Probability = 1.0


class Fault(_Switch):
    """A fault that only happens or not."""


class SlowStart(_Switch):
    seconds: Seconds


class Crash(_Switch):
    after_s: Seconds
    """Seconds from the container's first answered /ping to SIGKILL of all its processes."""


class ChaosSpec(BaseModel):
    """Which faults an agent suffers. A switch that is absent is off; ``{}`` is no chaos."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int | None = None
    """None: different every time. With a seed the n-th draw of each switch is always the same."""
    throttle: Fault | None = None
    """Invoke or stop answers ThrottlingException though the bucket has tokens."""
    slow_start: SlowStart | None = None
    """The cold start takes this much longer."""
    fail_start: Fault | None = None
    """The container never comes up: RuntimeClientError."""
    crash: Crash | None = None
    """The container is lost some time after it became ready."""
    never_answer: Fault | None = None
    """The call is taken, not delivered, and not answered until the caller leaves or the request times out."""


class Chaos:
    """The draws of one agent's `ChaosSpec`. Each switch has dice of its own, so their order does not matter."""

    def __init__(self, spec: ChaosSpec) -> None:
        self.spec = spec
        self._dice: dict[str, random.Random] = {}

    def _hits(self, name: str, switch: _Switch | None) -> bool:
        if switch is None:
            return False
        if name not in self._dice:
            seed = self.spec.seed
            self._dice[name] = random.Random() if seed is None else random.Random(f"{seed}/{name}")
        return self._dice[name].random() < switch.probability

    def throttles(self) -> bool:
        return self._hits("throttle", self.spec.throttle)

    def fails_start(self) -> bool:
        return self._hits("fail_start", self.spec.fail_start)

    def never_answers(self) -> bool:
        return self._hits("never_answer", self.spec.never_answer)

    def extra_start_s(self) -> float:
        slow = self.spec.slow_start
        return slow.seconds if slow is not None and self._hits("slow_start", slow) else 0.0

    def crash_after_s(self) -> float | None:
        crash = self.spec.crash
        return crash.after_s if crash is not None and self._hits("crash", crash) else None
