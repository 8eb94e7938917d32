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
    """Events by choice, runs of mere text joined: how many tokens a chunk carries depends on the engine's load.

    Each comes as JSON text, so that the order of keys is compared too.
    """
    streams: dict[int, list[dict[str, Any]]] = {}
    rest: list[Any] = []
    for event in events:
        if not isinstance(event, dict) or not event.get("choices"):
            rest.append(event)
            continue
        (choice,) = event["choices"]
        if choice.get("delta") == {"content": None} and choice["finish_reason"] is None:
            continue  # what is left of tool calls the agent did not want; as many as the engine sent pieces
        run = streams.setdefault(choice["index"], [])
        if not (run and _joined(run[-1], event)):
            run.append(event)
    for run in streams.values():
        _check_running_usage(run)
    return [json.dumps(e) for _, run in sorted(streams.items()) for e in run] + [json.dumps(e) for e in rest]


def _check_running_usage(run: list[dict[str, Any]]) -> None:
    """Blank the counts that depend on where the engine cut its chunks, once they are seen to add up and never to fall.

    Those of a choice's last event and of the usage event stay as they are.
    """
    counted = [e for e in run if e.get("usage")]
    counts = [e["usage"]["completion_tokens"] for e in counted]
    assert counts == sorted(counts), f"running usage falls: {counts}"
    for event, count in zip(counted, counts, strict=True):
        usage = event["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + count, usage
        if event["choices"][0]["finish_reason"] is None and count:
            event["usage"] = usage | {"completion_tokens": "some", "total_tokens": "some"}


def _joined(before: dict[str, Any], event: dict[str, Any]) -> bool:
    """Move what ``event`` carries to ``before`` where both only carry text, or arguments of one tool call; True when
    nothing of it is left. A choice's last event keeps its place without its text. Running usage is the later one's.
    """
    a, b = before["choices"][0], event["choices"][0]
    x, y = (a, b) if "text" in b else (a["delta"], b["delta"])
    if a["finish_reason"] is not None or not _moved(x, y, "text" if "text" in b else "content"):
        return False
    for name in ("token_ids", "prompt_token_ids"):
        if b.get(name) is not None:
            a[name] = (a.get(name) or []) + b.pop(name)
    if b.get("logprobs"):
        a["logprobs"] = a["logprobs"] or {k: [] for k in b["logprobs"]}
        for name, values in b.pop("logprobs").items():
            a["logprobs"][name] = a["logprobs"][name] + values
    if "usage" in event:
        before["usage"] = event["usage"]
    return b["finish_reason"] is None


def _moved(x: dict[str, Any], y: dict[str, Any], key: str) -> bool:
    """Append the text of ``y`` to that of ``x``, or its tool call's arguments; False when it carries anything else."""
    mere = {key, "reasoning"}  # a hidden reasoning is null beside the text
    texts = not (set(x) | set(y)) - mere and not x.get("reasoning") and not y.get("reasoning")
    if x.get(key) is not None and (key == "text" or texts):
        if key == "content":
            y.pop("reasoning", None)
        x[key] += y.pop(key, None) or ""
        return True
    calls, more = x.get("tool_calls"), y.get("tool_calls")
    same = calls and more and len(calls) == len(more) == 1 and set(more[0]) == {"index", "function"}
    if not same or calls[0]["index"] != more[0]["index"] or set(more[0]["function"]) != {"arguments"}:
        return False
    if "arguments" not in calls[0]["function"]:
        return False
    calls[0]["function"]["arguments"] += y.pop("tool_calls")[0]["function"]["arguments"]
    return True
