"""Answers made comparable: ids and times removed, and a stream's pieces joined where only its chunking may differ."""

from __future__ import annotations

import json
from typing import Any

VOLATILE = ("id", "created")


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with its id, its time and the random ids of tool calls blanked; key order kept."""
    out = {k: "" if k in VOLATILE else v for k, v in answer.items()}
    for choice in out.get("choices") or ():
        for part in (choice.get("message"), choice.get("delta")):
            for call in (part or {}).get("tool_calls") or ():
                if call.get("id"):
                    call["id"] = ""
    return out


def events_of(text: str) -> list[Any]:
    """The events of a stream: JSON objects, or the bare text of one that is none."""
    data = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    return [without_ids(json.loads(d)) if d.startswith("{") else d for d in data]


def merged(events: list[Any]) -> list[str]:
    """A stream by choice, with all that its deltas say joined: how an engine cuts its chunks depends on its load.

    Of each choice: its opening, what was said of each kind, the order of the kinds, ids and log-probs, its end, and
    which keys its events have in which order. Then what belongs to no choice. Each as JSON text, so that the order of
    keys is compared too.
    """
    streams: dict[int, _Joined] = {}
    rest: list[Any] = []
    for event in events:
        if not isinstance(event, dict) or not event.get("choices"):
            rest.append(event)
            continue
        (choice,) = event["choices"]
        streams.setdefault(choice["index"], _Joined()).take(event, choice)
    return [json.dumps(s.shown()) for _, s in sorted(streams.items())] + [json.dumps(e) for e in rest]


_SAID = ("role", "content", "reasoning", "tool_calls")
"""The keys of a delta, in order."""


class _Joined:
    """One choice of a stream."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.calls: dict[int, dict[str, Any]] = {}
        self.order: list[str] = []
        self.lists: dict[str, list[Any]] = {}
        self.keys: set[tuple[str, ...]] = set()
        self.opening: Any = None
        self.end: Any = None
        self.usage: dict[str, Any] | None = None

    def take(self, event: dict[str, Any], choice: dict[str, Any]) -> None:
        assert self.end is None, f"a choice goes on after its end: {event}"
        delta = choice["delta"] if "delta" in choice else {"text": choice["text"]}
        if "role" in delta:
            assert self.opening is None, f"a second opening: {event}"
            self.opening = event
        self.keys.add(tuple(k for k in event if k not in ("usage", "system_fingerprint")))
        self.keys.add(tuple(k for k in choice if k != "stop_reason"))
        self._say(delta)
        self._list(choice)
        self._count(event)
        if choice["finish_reason"] is not None:
            last = {k: v for k, v in choice.items() if k not in ("delta", "text", "logprobs", "token_ids")}
            self.end = {**event, "choices": [last]}

    def _say(self, delta: dict[str, Any]) -> None:
        if "text" not in delta:
            assert list(delta) == [k for k in _SAID if k in delta], f"a delta's keys out of order: {delta}"
        for name in ("reasoning", "content", "text"):
            if delta.get(name):
                self._kind(name)
                self.texts[name] = self.texts.get(name, "") + delta[name]
        for call in delta.get("tool_calls") or ():
            self._kind(f"call {call['index']}")
            found = self.calls.setdefault(call["index"], {"function": {}})
            for name, value in call["function"].items():
                if value is not None:
                    found["function"][name] = found["function"].get(name, "") + value
            found.update({k: v for k, v in call.items() if k not in ("function", "index")})

    def _kind(self, kind: str) -> None:
        if self.order[-1:] != [kind]:
            self.order.append(kind)

    def _list(self, choice: dict[str, Any]) -> None:
        for name in ("token_ids", "prompt_token_ids"):
            if choice.get(name) is not None:
                self.lists.setdefault(name, []).extend(choice[name])
        for name, values in (choice.get("logprobs") or {}).items():
            self.lists.setdefault(f"logprobs.{name}", []).extend(values)

    def _count(self, event: dict[str, Any]) -> None:
        """Running usage depends on where chunks are cut: it must add up and never fall. The last is compared."""
        usage = event.get("usage")
        if usage is None:
            return
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
        if self.usage is not None:
            assert self.usage["completion_tokens"] <= usage["completion_tokens"], f"running usage falls: {event}"
            assert list(self.usage) == list(usage), f"running usage changes its form: {event}"
        self.usage = usage

    def shown(self) -> dict[str, Any]:
        return {
            "opening": self.opening, "order": self.order, "texts": self.texts,
            "calls": [self.calls[i] for i in sorted(self.calls)], "lists": self.lists,
            "keys": sorted(self.keys), "end": self.end,
        }  # fmt: skip
