"""The sampling parameters of a batch, as agents receive them and the gateway enforces them."""

from __future__ import annotations

from typing import Any

from rollway_driver.verl.trainer_facts import TrainerFacts


def sampling_params(facts: TrainerFacts, max_tokens: int | None, *, validate: bool) -> dict[str, Any]:
    """OpenAI's names, so that ``client.chat.completions.create(**sampling_params)`` takes them; what OpenAI does not
    have stands under ``extra_body``, as agentcore-rl-toolkit sends it.

    A training batch pins every parameter that would move the engine's distribution away from the trainer's.
    """
    return {
        "temperature": facts.val_temperature if validate else facts.temperature,
        "top_p": facts.val_top_p if validate else 1.0,
        "max_tokens": max_tokens or facts.budget.response,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "extra_body": {
            "top_k": facts.val_top_k if validate else -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        },
    }
