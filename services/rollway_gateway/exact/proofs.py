"""Templates loaded and proven once per folder, off the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rollway_gateway.render import Bridge, Certificate, History, Template, certify, prove
from rollway_gateway.render.vocabulary import read_json
from rollway_wire.problems import RollwayError


@dataclass(frozen=True, slots=True)
class Proven:
    """A folder's certificate; template and bridge unless it says mirror."""

    certificate: Certificate
    template: Template | None
    bridge: Bridge | None
    limits_length: bool
    """generation_config.json holds a ``max_new_tokens``."""


class Proofs:
    """Kept for the life of the process: a folder is taken to stay as it is."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: dict[Path, Proven] = {}
        self._locks: dict[Path, asyncio.Lock] = {}

    async def of(self, folder: Path) -> Proven:
        """The proof of a model folder. Takes seconds the first time, for a large vocabulary."""
        async with self._locks.setdefault(folder, asyncio.Lock()):
            if folder not in self._known:
                self._known[folder] = await asyncio.to_thread(_prove, folder, self._history)
            return self._known[folder]


def _prove(folder: Path, history: History) -> Proven:
    try:
        template = Template.load(folder)
        limits = read_json(folder / "generation_config.json").get("max_new_tokens") is not None
    except RollwayError:
        return Proven(certify(folder, history=history), None, None, False)
    proof = prove(template, history=history)
    return Proven(proof.certificate, template, proof.bridge, limits)
