"""A brake on a real vLLM server: what a test does to a turn under way then meets one, however fast the machine is.

A server that `tests.kit.vllm_server` starts has one. While it is on, each step of the engine takes `STEP_S` at least,
and the engine says how many tokens each of its running requests has sampled. What it samples stays the same.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.deadlines import eventually

STEP_S = 0.5
ARGUMENTS = ["--logits-processors", "engine_brake:Brake"]
"""Of the server."""


@dataclass(frozen=True)
class EngineBrake:
    folder: Path
    """In it the lever, ``brake.on``: there while it is on, with a word that is new each time and the seconds of a step.
    And ``brake.told``: what the engine said last, that word and the tokens sampled by request."""

    @property
    def environment(self) -> dict[str, str]:
        """Of the server."""
        return {"PYTHONPATH": str(Path(__file__).parent / "inside_vllm"), "BRAKE_FOLDER": str(self.folder)}

    @contextmanager
    def on(self) -> Iterator[None]:
        made = self.folder / "brake.made"
        made.write_text(json.dumps([uuid.uuid4().hex, STEP_S]))
        made.rename(self._lever)
        try:
            yield
        finally:
            self._lever.unlink()

    async def under_way(self, requests: int, *, tokens: int = 3, within_s: float = 240) -> None:
        """Until so many requests run, and each has sampled so many tokens at least. Only while it is on.

        Raises:
            TimeoutError
        """
        what = f"{requests} requests with {tokens} tokens each"
        await eventually(lambda: self._least(requests) >= tokens, what, within_s)

    @property
    def _lever(self) -> Path:
        return self.folder / "brake.on"

    def _least(self, requests: int) -> int:
        try:
            word, sampled = json.loads((self.folder / "brake.told").read_text())
        except FileNotFoundError:
            return 0
        return min(sampled) if word in self._lever.read_text() and len(sampled) == requests else 0
