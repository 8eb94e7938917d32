"""Agents that ask a model for sums and run its `add` tool, one per API dialect, written with the providers' SDKs.

Each keeps its history as agents in its dialect do. Two examples stand before the first question, so that even a small
model calls the tool, freely sampled. Whatever the model says, an agent goes on: calls get results, broken arguments an
error, and an answer without calls the next question.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.sum_agents.agent import TWO_CALLS, AnswerBroken, Call, Dialect, Shown, SumAgent
from tests.kit.sum_agents.chat import ChatAgent
from tests.kit.sum_agents.completions import CompletionsAgent
from tests.kit.sum_agents.messages import MessagesAgent
from tests.kit.sum_agents.responses import ResponsesAgent

__all__ = ["TWO_CALLS", "AnswerBroken", "Call", "Dialect", "Shown", "SumAgent", "make_agent"]


def make_agent(dialect: Dialect, base_url: str, model: Path, **options: Any) -> SumAgent:
    """An agent that talks to a session's base URL; ``model`` is the folder of the engine's model."""
    match dialect:
        case "chat":
            return ChatAgent(base_url, **options)
        case "completions":
            return CompletionsAgent(base_url, tokenizer=model, **options)
        case "responses":
            return ResponsesAgent(base_url, **options)
        case "messages":
            return MessagesAgent(base_url, **options)
