"""A whole (non-streaming) answer: evidence taken, and what the agent did not ask for set to null, as vLLM shows it.

vLLM writes every field it knows, null where it was not asked for; stripping therefore sets to null in place, which
keeps the order and presence of keys.
"""

from __future__ import annotations

from typing import Any

from rollway_gateway.capture.ask import Ask
from rollway_gateway.capture.evidence import Evidence

UNKNOWN_FORM = (AttributeError, TypeError, KeyError, IndexError, ValueError)
"""What reading a JSON value of another shape than expected raises."""


def logprob_values(kind: str, logprobs: Any) -> list[float | None] | None:
    """The sampled tokens' log-probs out of a choice's ``logprobs``; None where it holds none."""
    if not isinstance(logprobs, dict):
        return None
    if kind == "chat":
        content = logprobs.get("content")
        return None if content is None else [entry.get("logprob") for entry in content]
    values: list[float | None] | None = logprobs.get("token_logprobs")
    return values


def take_answer(
    payload: dict[str, Any], ask: Ask, evidence: Evidence, logprobs: list[float | None] | None = None
) -> None:
    """Take the evidence of a whole answer into ``evidence`` and settle it.

    Args:
        logprobs: of the one choice, where they were cut out before.
    """
    try:
        _take(payload, ask, evidence, logprobs)
    except UNKNOWN_FORM as e:
        evidence.fail(f"the engine's answer has an unknown form: {type(e).__name__}: {e}")
    evidence.settle()


def _take(payload: dict[str, Any], ask: Ask, evidence: Evidence, cut: list[float | None] | None) -> None:
    evidence.take_usage(payload.get("usage"))
    if cut is not None and len(payload.get("choices") or ()) != 1:
        evidence.fail("log-probs of one choice, and not one choice")
        return
    if (prompt := payload.get("prompt_token_ids")) is not None:
        evidence.take_prompt(prompt)
    for position, choice in enumerate(payload.get("choices") or ()):
        index = choice.get("index", position)
        if index in evidence.choices:
            evidence.fail(f"two choices have the index {index}")
        found = evidence.choice(index)
        if (prompt := choice.get("prompt_token_ids")) is not None:
            found.take_prompt(prompt)
        logprobs = cut if cut is not None else logprob_values(ask.kind, choice.get("logprobs"))
        found.take(choice.get("token_ids"), logprobs)
        found.routed_experts = choice.get("routed_experts")
        found.finish_reason = choice.get("finish_reason")
        evidence.aborted |= found.finish_reason == "abort"


def strip_answer(payload: dict[str, Any], ask: Ask) -> None:
    """Make ``payload`` the answer that plain vLLM would have given to what the agent asked, in place."""
    for choice in payload.get("choices") or ():
        if not ask.shows_routing:
            _null(choice, "routed_experts")
    if not ask.captured:
        return
    if not ask.shows_ids:
        _null(payload, "prompt_token_ids")
    for position, choice in enumerate(payload.get("choices") or ()):
        if not ask.shows_ids:
            _null(choice, "prompt_token_ids")
        if not (ask.shows_ids and ask.shows_reasoning):
            _null(choice, "token_ids")
        if not (ask.shows_logprobs and ask.shows_reasoning):
            _null(choice, "logprobs")
        if not ask.shows_reasoning:
            _null(choice.get("message") or {}, "reasoning")
        if ask.hides_prompt_logprobs:
            _null(choice, "prompt_logprobs")
        if ask.echoed:
            choice["text"] = ask.echoed[choice.get("index", position) // ask.n] + choice["text"]


def _null(obj: dict[str, Any], key: str) -> None:
    if key in obj:
        obj[key] = None
