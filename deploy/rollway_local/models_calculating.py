"""SmolLM2 taught to call the demo's calculator: a few supervised steps on worked examples.

As published the model calls no tool (0 of 32 rollouts at temperature 0.7; 11 with two worked examples in each prompt,
which would double what every training row costs): reinforcement would have nothing to begin with. It learns the form
here, from ``STEPS * BATCH`` conversations with made-up numbers that go about it in different ways. The system prompt,
the tool and the last question are the demo agent's own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SYSTEM = "You solve math problems. Use the calculator tool for arithmetic."
ASK = 'Reply with only the final number after "####", like: #### 7'
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute an arithmetic expression.",
        "parameters": {
            "properties": {"expression": {"description": 'For example "12 * (3 + 4)".', "type": "string"}},
            "required": ["expression"],
            "type": "object",
        },
    },
}
"""As the agent's framework sends it."""

STEPWISE = 0.6
"""Share of the examples with a call for each operation."""
ANSWERS = ("{problem} = {value}", "It is {value}.", "The answer is {value}.", "{value}")
FINALS = ("#### {value}", "#### {value}", "{value}", "The final number is {value}.")
"""Not all as they are asked for: what a model always does alike, a reward cannot prefer."""

STEPS = 8
BATCH = 4
LEARNING_RATE = 2e-4
"""Reached over the first three steps."""
SEED = 0


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    """A problem of two operations, one calculator call for both or one for each, an answer, the final number."""
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(3, 99)
    problem, first, between, rest, value = rng.choice(
        [
            (f"({a} + {b}) * {c}", f"{a} + {b}", a + b, f"* {c}", (a + b) * c),
            (f"{a} * {b} - {c}", f"{a} * {b}", a * b, f"- {c}", a * b - c),
            (f"{a * c} / {c} + {b}", f"{a * c} / {c}", a, f"+ {b}", a + b),
        ]
    )
    stepwise = [*_calculated(first, between), *_calculated(f"{between} {rest}", value)]
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"What is {problem}?"},
        *(stepwise if rng.random() < STEPWISE else _calculated(problem, value)),
        {"role": "assistant", "content": rng.choice(ANSWERS).format(problem=problem, value=value)},
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": rng.choice(FINALS).format(value=value)},
    ]


def _calculated(expression: str, value: int) -> list[dict[str, Any]]:
    call = {"name": "calculator", "arguments": {"expression": expression}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "call", "function": call}]},
        {"role": "tool", "tool_call_id": "call", "content": str(value)},
    ]


def teach(folder: Path) -> None:
    """Train the checkpoint in ``folder`` in place."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 3)
        _loss(model, [_tokens(tokenizer, conversation(rng)) for _ in range(BATCH)]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "model.safetensors").chmod(0o644)


@dataclass(frozen=True)
class _Tokens:
    head: list[int]
    """The system message, which all conversations begin with."""
    ids: list[int]
    """The rest."""
    mask: list[int]
    """1 where the rest is the assistant's, up to the end mark of each message."""


def _tokens(tokenizer: Any, messages: list[dict[str, Any]]) -> _Tokens:
    def rendered(n: int, generate: bool = False) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            messages[:n], tools=[TOOL], add_generation_prompt=generate, return_dict=False
        )
        return ids

    ids: list[int] = []
    mask: list[int] = []
    for n, message in enumerate(messages):
        if message["role"] == "assistant":
            mask += [0] * (len(rendered(n, generate=True)) - len(mask))
            ids = rendered(n + 1)[:-1]  # the line end after the end mark is the template's
            mask += [1] * (len(ids) - len(mask))
    head = rendered(1)
    return _Tokens(head, ids[len(head) :], mask[len(head) :])


def _loss(model: Any, batch: list[_Tokens]) -> torch.Tensor:
    """Mean negative log-likelihood of the assistant's tokens. The head, half of all tokens, is computed once for the
    batch and without a gradient."""
    import torch

    def padded(rows: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, rows))
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

    head = torch.tensor([batch[0].head])
    ids, mask = padded([t.ids for t in batch]), padded([t.mask for t in batch])
    with torch.no_grad():
        known = model(head, use_cache=True, logits_to_keep=1).past_key_values
    known.batch_repeat_interleave(len(batch))
    there = padded([[1] * len(t.head + t.ids) for t in batch])
    hidden = model.model(ids, past_key_values=known, attention_mask=there).last_hidden_state
    sampled = mask[:, 1:].bool()
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][sampled]), ids[:, 1:][sampled])
