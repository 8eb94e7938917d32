"""Turns in one line, for tests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rollway_wire.tokens import Turn


def turn(
    index: int,
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    choice: int = 0,
    incomplete: str | None = None,
    version: int = 1,
    ended_at: float | None = None,
) -> Turn:
    """Turn number ``index``; its id is ``t{index}`` or ``t{index}.{choice}``, its log-probs are told apart by place."""
    return Turn(
        turn_id=f"t{index}.{choice}" if choice else f"t{index}",
        call_id=f"c{index}",
        index=index,
        choice=choice,
        prompt_token_ids=array("i", prompt),
        completion_token_ids=array("i", completion),
        logprobs=array("f", [-(index + 1) - choice / 4 - i / 64 for i in range(len(completion))]),
        finish_reason="stop",
        policy_version_start=version,
        policy_version_end=version,
        started_at=float(index),
        ended_at=index + 0.5 if ended_at is None else ended_at,
        incomplete=incomplete,
    )


def extends(b: Turn, a: Turn) -> bool:
    """Said the slow way: prompt + completion of ``a`` is a prefix of the prompt of ``b``."""
    whole = a.prompt_token_ids + a.completion_token_ids
    return b.prompt_token_ids[: len(whole)] == whole
