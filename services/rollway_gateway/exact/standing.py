"""Standing: what the sessions of one worker run in, why, and what exact mode knows of the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rollway_gateway.render import Bridge, Certificate, Template

ToolFormat = Literal["hermes"]
"""How tool calls are written in sampled text. hermes: JSON with name and arguments between <tool_call> marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Everything needed to prompt one worker with ids."""

    template: Template
    bridge: Bridge
    quick: bool
    """A plan costs its new messages only, not a rendering of the session."""
    context: int
    """Tokens of prompt and completion together that the engine takes."""
    default_max_tokens: bool
    """The model's generation_config.json limits the length of an answer where the request does not."""
    parses: bool
    """The engine has a tool parser."""
    tools: ToolFormat | None
    """How to read tool calls as the engine's parser does; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """``exact`` is None in mirror mode."""

    why: str
    """In a sentence."""
    certificate: Certificate | None = None
    """Of the worker's template, where one was found."""
    exact: Exact | None = None

    @property
    def mode(self) -> Literal["exact", "mirror"]:
        return "mirror" if self.exact is None else "exact"

    def as_json(self) -> dict[str, Any]:
        """For a trajectory's metadata."""
        certificate = None if self.certificate is None else self.certificate.as_json()
        return {"mode": self.mode, "why": self.why, "certificate": certificate}


PARSES_REASONING = "the engine parses reasoning out of its answers, which is not repeated here for prompts of ids"

PROMPTS_OTHERWISE = "the engine prompted a chat with other ids than its template renders here"

UNKNOWN = Standing(why="the worker was not probed yet")
