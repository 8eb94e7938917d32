"""What the agents of all dialects share: the questions, the tool, and one turn of the conversation."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import openai

Dialect = Literal["chat", "completions", "responses", "messages"]
SYSTEM = "You are a helpful assistant."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
FUNCTION: dict[str, Any] = {"name": "add", "description": "Add", "parameters": SCHEMA}
SHOTS = ([(1, 2)], [(2, 2), (5, 4)], [(7, 2)])
"""Sums of the examples."""
_ONE = r'<tool_call>\n\{"name": "add", "arguments": \{"a": [0-9]{1,2}, "b": [0-9]\}\}\n</tool_call>'
TWO_CALLS = {"structured_outputs": {"regex": _ONE + r"\n" + _ONE}}
"""Makes the engine call twice. The log-probs are then those of its grammar."""


@dataclass(frozen=True)
class Call:
    """A tool call as the model made it."""

    call_id: str
    arguments: str


@dataclass(frozen=True)
class Shown:
    """What one answer showed the agent."""

    text: str
    calls: tuple[Call, ...]
    prompt_tokens: int
    completion_tokens: int


class AnswerBroken(Exception):
    """A stream said in its own words that it failed."""


class SumAgent(ABC):
    """One conversation, asked for one answer at a time."""

    dialect: ClassVar[Dialect]

    def __init__(self, base_url: str, *, model: str = "any", max_retries: int = 0, **headers: Any) -> None:
        self._base_url, self._model, self._retries, self._headers = base_url, model, max_retries, headers
        self.turns = 0
        self.max_tokens = 40
        self.temperature = 0.7
        self.extra: dict[str, Any] = {}
        """Parameters of vLLM's own."""
        self.said: list[str] = []
        """Texts that the agent put into the conversation, in order."""
        self.shown: list[Shown] = []

    async def turn(self, *, stream: bool) -> Shown:
        """Speak, ask for the answer and take it into the history."""
        self.speak()
        shown = await self.ask(stream=stream)
        self.keep(shown)
        return shown

    def speak(self) -> None:
        """Put the results of the last answer's calls into the conversation, or the next question."""
        calls = self.shown[-1].calls if self.shown else ()
        if calls:
            results = [run(call.arguments) for call in calls]
            self.said += results
            self._results(calls, results)
            return
        text = question([(self.turns + 3, 2 * self.turns + 1)])
        self.said.append(text)
        self._question(text)

    def keep(self, shown: Shown) -> None:
        """Take what `ask` answered last into the history."""
        self._keep()
        self.turns += 1
        self.shown.append(shown)

    @abstractmethod
    def _question(self, text: str) -> None: ...

    @abstractmethod
    def _results(self, calls: Sequence[Call], results: list[str]) -> None: ...

    @abstractmethod
    async def ask(self, *, stream: bool) -> Shown:
        """Ask with the conversation as it stands: the same request each time until the answer is kept."""

    async def leave(self, *, after: int = 3, when: asyncio.Event | None = None) -> None:
        """Ask for a stream and go away after so many of its events, and not before ``when`` is set."""
        events = await self._begin()
        for _ in range(after):
            await anext(events)
        if when is not None:
            await when.wait()
        await events.close()

    @abstractmethod
    async def _begin(self) -> Any:
        """The SDK's stream for the request that `ask` makes."""

    @abstractmethod
    def _keep(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


def question(sums: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"What is {a} plus {b}?" for a, b in sums)


def statement(sums: Sequence[tuple[int, int]]) -> str:
    return f"It is {', '.join(str(a + b) for a, b in sums)}."


def run(arguments: str) -> str:
    """The tool's result as text; what is wrong with the arguments where it cannot run."""
    try:
        given = json.loads(arguments)
        return str(given["a"] + given["b"])
    except (ValueError, KeyError, TypeError) as e:
        return f"error: {type(e).__name__}"


def openai_client(base_url: str, retries: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key="EMPTY", max_retries=retries, timeout=900)
