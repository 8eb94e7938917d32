"""What a template promises, as a value: stamped into every trajectory, printed by the ``certify`` command."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Reasoning = Literal["kept", "kept within a tool cycle", "never shown"]
Tools = Literal["shown", "ignored", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One probe: what follows an answer, and whether the session stays one sequence."""

    follows: str
    appends: bool
    reason: str = ""
    """A `DriftReason`, where it does not."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The findings about one template. JSON by `as_json`."""

    model: str
    mode: Literal["exact", "mirror"]
    """What a session of this model runs in."""
    why: str
    """In a sentence."""
    template_sha256: str = ""
    bridge: str = ""
    """What appends: a family of `renderers`, or the template's difference. Empty in mirror mode."""
    history: Literal["faithful", "continuous"] = "faithful"
    """The setting it was proven under (`bridge.History`)."""
    window: Literal["turn", "session"] = "turn"
    """How far around an answer the template looks; session costs a rendering of the whole history each turn."""
    closer: str = ""
    """The token that ends an answer in the rendering."""
    closer_id: int | None = None
    closer_stops: bool = False
    """Whether the engine's own stop tokens hold it. If not, generation must be told to stop there."""
    glue: str = ""
    """What stands between a tool call's arguments and the closer: rendered by the template, sampled by the model."""
    reasoning: Reasoning = "never shown"
    """What a later rendering shows of earlier reasoning that the template is given."""
    tools: Tools = "ignored"
    """What the template does with an answer's tool calls."""
    append_only: bool = False
    """Whether every case appends."""
    cases: tuple[Case, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The certificate as JSON values."""
        return {**dataclasses.asdict(self), "cases": [dataclasses.asdict(c) for c in self.cases]}
