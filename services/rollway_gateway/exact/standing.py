"""Standing: what the sessions of one worker run in, why, and what exact mode knows of the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rollway_gateway.exact.thinking import Marks
from rollway_gateway.render import Bridge, Certificate, Template

ToolFormat = Literal["hermes", "engine"]
"""How tool calls are read out of sampled text. hermes: here, JSON with name and arguments between <tool_call> marks;
engine: by the worker's own /derender."""


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
    thinking: tuple[Marks | None, ...] = (None,)
    """How the engine may read reasoning, as far as its answers say, the likeliest first; None: not at all."""
    renders: bool = False
    """It tells the grammar that it builds for a request (/v1/chat/completions/render)."""

    @property
    def marks(self) -> Marks | None:
        """How reasoning is read."""
        return self.thinking[0]

    def forms(self) -> str:
        """In a sentence, for whoever asks which way calls go."""
        marks = self.marks
        said = ["ids go to /completions"]
        if marks is not None:
            said.append(f"reasoning is read as {marks.kind}")
        if self.parses:
            how = {"hermes": "as hermes", "engine": "by /derender", None: "by nobody here, and go to chat"}[self.tools]
            said.append(f"tool calls are read {how}")
            grammar = "with /render's grammar" if self.renders and self.tools else "to chat"
            said.append(f"strict and forced tools go {grammar}")
        return ", ".join(said)


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

    @property
    def said(self) -> str:
        """Why it is so, and where calls go by ids, which way."""
        return self.why if self.exact is None else f"{self.why}; {self.exact.forms()}"

    def as_json(self) -> dict[str, Any]:
        """For a trajectory's metadata."""
        certificate = None if self.certificate is None else self.certificate.as_json()
        return {"mode": self.mode, "why": self.said, "certificate": certificate}


READS_OTHERWISE = "the engine reads reasoning or tool calls out of its answers otherwise than is known here"

PROMPTS_OTHERWISE = "the engine prompted a chat with other ids than its template renders here"

UNKNOWN = Standing(why="the worker was not probed yet")
