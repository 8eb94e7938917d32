"""The conversation every framework has with the scripted engine: two tools at once, then one, then an answer.

What a framework sends back as history decides whether the session stays one sequence. In mirror mode it does when the
history renders to what was sampled. In exact mode it must even though the model wrote its arguments without spaces,
which no framework gives back and the template writes with them.
"""

from __future__ import annotations

from rollway_wire.tokens import Trajectory
from tests.kit.scripted_engine import FIRST_BYTE, Reply, ScriptedEngine

QUESTION = "What is 1 + 2, what is 3 + 4, and what is their sum?"
ANSWER = "Their sum is 10."
TURNS = 3


def script(engine: ScriptedEngine, *, exact: bool) -> None:
    """The model's part; ``add`` gives the sum of ``a`` and ``b``."""
    replies = [
        [("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}')],
        [("add", '{"a": 3, "b": 7}')],
    ]
    for text, calls in zip(("", "So far so good."), replies, strict=True):
        engine.script(Reply(text, tool_calls=[(n, a.replace(" ", "") if exact else a) for n, a in calls]))
    engine.script(Reply(ANSWER) if exact else Reply(ANSWER, reasoning="Easy."))


def check(made: Trajectory, *, exact: bool) -> None:
    """Three whole turns whose prompts hold the tools' results, every sampled token trained once in one sequence."""
    assert [turn.incomplete for turn in made.turns] == [None] * TURNS
    assert (made.incomplete, made.mode) == (None, "exact" if exact else "mirror"), made.metadata
    assert not exact or made.metadata["fidelity"] == {"turns": TURNS, "exact": TURNS}
    (sequence,) = made.sequences
    assert sequence.trained_tokens == made.ledger.sampled
    for turn, results in zip(made.turns[1:], (("3", "7"), ("10",)), strict=True):
        prompt = bytes(i - FIRST_BYTE for i in turn.prompt_token_ids if i >= FIRST_BYTE).decode()
        tail = prompt.rpartition("</tool_call>")[2]
        assert tail.split("tool\n")[1:] == [*results[:-1], results[-1] + "assistant\n"]
