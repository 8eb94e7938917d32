"""Small conversations that ask a template what it does when messages follow an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollway_gateway.render.messages import Message
from rollway_gateway.render.template import Options

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_ASK: Message = {"role": "user", "content": "First question?"}
_AGAIN: Message = {"role": "user", "content": "And the second?"}
_SAY: Message = {"role": "assistant", "content": "An answer."}


_NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Probe:
    """An answer in its place: what came before it, what comes after."""

    name: str
    history: Sequence[Message]
    answer: Message
    new: Sequence[Message]
    options: Options = _NO_OPTIONS


def _call(*ids: str, **more: Any) -> Message:
    calls = [
        {"id": i, "type": "function", "function": {"name": "look_up", "arguments": f'{{"word": "w{i}"}}'}} for i in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def _result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": f"Found {call_id}."}


_A, _B, _C = "probe0001", "probe0002", "probe0003"  # nine letters and digits: Mistral's templates insist
_WITH_TOOLS = Options(tools=[_TOOL])

PROBES: tuple[Probe, ...] = (
    Probe("user message", [_ASK], _SAY, [_AGAIN]),
    Probe("user message, with a system message", [_SYSTEM, _ASK], _SAY, [_AGAIN]),
    Probe("user message, later in the session", [_ASK, _SAY, _AGAIN], _SAY, [_ASK]),
    Probe("tool result", [_ASK], _call(_A), [_result(_A)], _WITH_TOOLS),
    Probe("tool result, with a system message", [_SYSTEM, _ASK], _call(_A), [_result(_A)], _WITH_TOOLS),
    Probe("parallel tool results", [_ASK], _call(_A, _B), [_result(_A), _result(_B)], _WITH_TOOLS),
    Probe("second tool result", [_ASK, _call(_A), _result(_A)], _call(_B), [_result(_B)], _WITH_TOOLS),
    Probe("user message after tools", [_ASK, _call(_A), _result(_A)], _SAY, [_AGAIN], _WITH_TOOLS),
    Probe(
        "tool result in a second cycle",
        [_ASK, _call(_A), _result(_A), _SAY, _AGAIN],
        _call(_C),
        [_result(_C)],
        _WITH_TOOLS,
    ),
    Probe("user message after reasoning", [_ASK], {**_SAY, "reasoning": "I think."}, [_AGAIN]),
    Probe("tool result after reasoning", [_ASK], _call(_A, reasoning="I think."), [_result(_A)], _WITH_TOOLS),
)
