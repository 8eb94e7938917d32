"""The conversation every framework has with the scripted engine: two tools at once, then one, then an answer.

What a framework sends back as history decides whether the session stays one sequence.
"""

from __future__ import annotations

from typing import Any

from rollway_wire.tokens import Trajectory
from tests.kit.scripted_engine import Reply

QUESTION = "What is 1 + 2, what is 3 + 4, and what is their sum?"
ANSWER = "Their sum is 10."
TURNS = 3


def scripted(body: dict[str, Any]) -> Reply:
    """By how many tool results the history holds; ``add`` gives the sum of ``a`` and ``b``."""
    results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    match len(results):
        case 0:
            return Reply("", tool_calls=[("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}')])
        case 2:
            assert "3" in str(results[0])
            assert "7" in str(results[1])
            return Reply("So far so good.", tool_calls=[("add", '{"a": 3, "b": 7}')])
        case _:
            assert "10" in str(results[2])
            return Reply(ANSWER, reasoning="Easy.")


def check(made: Trajectory) -> None:
    """Three whole turns, every sampled token trained once in a single sequence."""
    assert [turn.incomplete for turn in made.turns] == [None] * TURNS
    assert made.incomplete is None
    (sequence,) = made.sequences
    assert sequence.trained_tokens == made.ledger.sampled
