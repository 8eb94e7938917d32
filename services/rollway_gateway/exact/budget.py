"""Budget: how long a session's sequences may become. Answered to the agent as an engine with that context would."""

from __future__ import annotations

from dataclasses import dataclass

from rollway_gateway.openai_errors import AgentError


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one session; None: no limit."""

    prompt: int | None = None
    """Tokens of the first prompt of a sequence."""
    response: int | None = None
    """Tokens after it."""

    def __bool__(self) -> bool:
        return self.prompt is not None or self.response is not None

    def room(self, first: int, length: int) -> int | None:
        """Tokens left for an answer; None: as many as the engine gives.

        Args:
            first: length of the sequence's first prompt.
            length: of this call's prompt.

        Raises:
            AgentError: 400, none are left.
        """
        if self.prompt is not None and first > self.prompt:
            raise _too_long(self.prompt, first)
        if self.response is None:
            return None
        room = first + self.response - length
        if room < 1:
            raise _too_long(first + self.response, length)
        return room


def _too_long(limit: int, length: int) -> AgentError:
    return AgentError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {length} input tokens. "
        "Please reduce the length of the input prompt.",
        param="input_tokens",
    )
