"""Scripted agents: what the model says in each turn, how it happens to tokenise it, and what the agent answers.

A session's first user message names its script and seed, so that the engine, which sees prompts alone, knows what to
sample. The agents run on the real ``openai`` SDK and echo history as people do with it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TAG = re.compile(r"\[script ([a-z-]+) ([0-9]+) ([ab])\]")
TURNS = 6
"""Of each thread."""
THREADS = ("a", "b")
"""Conversations that may run in one session, each with its own history."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {k: {"type": "string"} for k in fields}},
        },
    }
    for name, text, fields in (
        ("search", "Search the catalogue.", ("query", "limit")),
        ("weather", "Weather of a city.", ("city", "unit", "day")),
    )
]
_TEXTS = (
    "The total comes to 1234 euros, and HAVING checked it twice I am sure.",
    "Unfortunately nothing matched; shall I widen the search to neighbouring towns?",
    "First, sort the list. Second, remove duplicates. Third, count what is left.",
    "naïve café 日本語 🙂 — all three stand in the file.",
    "def add(a, b):\n    return a + b\n\nThat is all there is to it.",
    "Yes: the train leaves at 07:45 and arrives before noon.",
)


@dataclass(frozen=True)
class Script:
    name: str
    about: str
    uses_tools: bool = False
    calls: int = 1
    """Tool calls in a turn that makes any."""
    spaced: bool = False
    """The model writes its calls' JSON with spaces and line ends that a serialiser would not."""
    pads: bool = False
    """Answers begin and end with white space."""
    splits: bool = False
    """Sampled tokens are not those the tokenizer would cut the same text into."""
    threads: int = 1
    """Conversations in the session, a turn of each in turn, as an agent with a sub-agent makes them."""
    parts: bool = False
    """The agent sends its text as content parts."""
    rekeys: bool = False
    """The agent writes the calls' arguments anew, keys sorted."""

    def says(self, seed: int, turn: int) -> str:
        """The model's text in a turn; the last turn of a script has no tool call."""
        chance = random.Random(f"{self.name} {seed} {turn}")
        if self.uses_tools and turn < TURNS - 1:
            text = chance.choice(("", "", "Let me look that up.\n"))
            return text + "\n".join(self._call(chance) for _ in range(self.calls))
        text = chance.choice(_TEXTS)
        return f"\n {text} \n" if self.pads else text

    def _call(self, chance: random.Random) -> str:
        if chance.random() < 0.5:
            name, arguments = "search", {"query": chance.choice(("red shoes", "tea, green", "O'Neill")), "limit": "10"}
        else:
            name, arguments = "weather", {"unit": "C", "city": chance.choice(("Zürich", "Paris", "São Paulo"))}
        written = {"name": name, "arguments": arguments}
        if self.spaced:
            body = json.dumps(written, indent=chance.choice((1, 2, None)), separators=(" ,", ":"), ensure_ascii=False)
        else:
            body = json.dumps(written, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"

    def pieces(self, seed: int, turn: int) -> list[str]:
        """The text cut into what is tokenised apart: one piece, or cuts inside words."""
        text = self.says(seed, turn)
        if not self.splits:
            return [text]
        chance = random.Random(f"{self.name} {seed} {turn} cuts")
        cuts = sorted(chance.sample(range(1, len(text)), 3))
        return [text[lo:hi] for lo, hi in zip([0, *cuts], [*cuts, len(text)], strict=True)]


SCRIPTS: dict[str, Script] = {
    s.name: s
    for s in (
        Script("chat", "text answers"),
        Script("padded", "text answers with white space around them", pads=True),
        Script("resampled", "text answers in tokens that text alone does not give back", splits=True),
        Script("tools", "a tool call a turn", uses_tools=True),
        Script("parallel", "two tool calls a turn", uses_tools=True, calls=2),
        Script("spaced", "tool calls in JSON of the model's own spacing", uses_tools=True, spaced=True),
        Script("rekeyed", "tool calls whose arguments the agent writes anew", uses_tools=True, rekeys=True),
        Script("parts", "text answers that the agent echoes as content parts", parts=True),
        Script(
            "subagent",
            "two conversations in turn, tools in JSON of the model's own spacing",
            uses_tools=True,
            spaced=True,
            threads=2,
        ),
    )
}


def opening(script: Script, seed: int, thread: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You answer briefly." if thread == "a" else "You help another assistant."},
        {"role": "user", "content": f"[script {script.name} {seed} {thread}] Please go on until it is done."},
    ]


def echoed(script: Script, message: dict[str, Any]) -> dict[str, Any]:
    """The assistant's message as the agent puts it into its history."""
    if script.rekeys:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            function["arguments"] = json.dumps(json.loads(function["arguments"]), sort_keys=True, separators=(",", ":"))
    if script.parts and message.get("content"):
        message["content"] = [{"type": "text", "text": message["content"]}]
    return message


def answers(message: dict[str, Any], turn: int) -> Sequence[dict[str, Any]]:
    """What follows an assistant's message: tool results, or the user."""
    calls = message.get("tool_calls") or ()
    if not calls:
        return [{"role": "user", "content": f"Good. Now step {turn + 2}, please."}]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"ok": True, "rows": 3 + i})}
        for i, call in enumerate(calls)
    ]
