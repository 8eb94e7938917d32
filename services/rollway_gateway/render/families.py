"""Hand-written renderers of the `renderers` package, behind the same `Bridge`.

Optional: without the package (extra ``gateway-families``) every template goes by its difference. A family is not taken
on its name: it must render what the model's own template renders, id by id, on every probe (`certify`).
"""

from __future__ import annotations

import importlib.util
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from rollway_gateway.render.bridge import Bridge, Drift, DriftReason, History, array_of
from rollway_gateway.render.messages import Message, engine_messages, engine_tools
from rollway_gateway.render.template import Options, Template
from rollway_gateway.render.vocabulary import Vocabulary
from rollway_gateway.tree.canonical import call_ids
from rollway_gateway.tree.messages import ExactTurn

_TEXT_FAMILIES = (
    "qwen3", "prime-qwen3", "glm-5", "glm-5.1", "glm-5.3", "glm-4.5", "minimax-m2", "deepseek-v3", "deepseek-r1",
    "hy3", "kimi-k2", "laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1", "llama-3", "nemotron-3",
    "nemotron-3-ultra", "nemotron-3.5", "qwen3.5", "qwen3.6", "qwen3.8", "gpt-oss",
)  # fmt: skip
"""Those that render text without a media processor."""


class _Tokenizer:
    """A vocabulary with the names `renderers` calls."""

    def __init__(self, vocabulary: Vocabulary, name: str) -> None:
        self._vocabulary = vocabulary
        self.name_or_path = name
        self.eos_token_id = vocabulary.id_of(vocabulary.special_tokens.get("eos_token", ""))
        self.unk_token_id = vocabulary.id_of(vocabulary.special_tokens.get("unk_token", ""))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._vocabulary.encode(text).tolist()

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        return self._vocabulary.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            found = self._vocabulary.id_of(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(t) for t in tokens]


class FamilyBridge:
    """A family's own bridge. Requests with template arguments go to ``otherwise``: parity was proven without any."""

    def __init__(self, family: str, renderer: Any, otherwise: Bridge) -> None:
        self._family, self._renderer, self._otherwise = family, renderer, otherwise

    @property
    def name(self) -> str:
        return f"renderers:{self._family}"

    def extend(
        self, turn: ExactTurn, history: Sequence[Message], new: Sequence[Message], options: Options
    ) -> array[int] | Drift:
        if options.kwargs or any(m.get("role") == "assistant" for m in new) or not new:
            return self._otherwise.extend(turn, history, new, options)
        ids = turn.ids()
        sampled = len(turn.completion_ids)
        try:
            made = self._renderer.bridge_to_next_turn(
                ids[: len(ids) - sampled].tolist(),
                ids[len(ids) - sampled :].tolist(),
                _named(turn, engine_messages(new, "string")),
                tools=engine_tools(options.tools),
            )
        except Exception as e:  # noqa: BLE001 - foreign code over an agent's messages: any failure is a refusal
            return Drift(DriftReason.REFUSED, f"{self.name}: {type(e).__name__}: {e}")
        if made is None:
            return Drift(DriftReason.NOT_APPENDED, f"{self.name} declines to extend this turn with these messages")
        whole = array_of(made.token_ids)
        if whole[: len(ids)] != ids:
            return Drift(DriftReason.NOT_APPENDED, f"{self.name} did not keep the sampled ids")
        return whole[len(ids) :]

    def prompt_ids(self, messages: Sequence[Message], options: Options) -> array[int]:
        """The family's own full rendering, to be held against the template's."""
        made = self._renderer.render_ids(
            engine_messages(messages, "string"), tools=engine_tools(options.tools), add_generation_prompt=True
        )
        return array_of(made)


def candidates(template: Template, history: History, otherwise: Bridge) -> Iterator[FamilyBridge]:
    """A bridge for each family whose special tokens the vocabulary has. None without the package."""
    if importlib.util.find_spec("renderers") is None:
        return
    from renderers import create_renderer
    from renderers.configs import config_from_name

    tokenizer = _Tokenizer(template.vocabulary, template.name)
    for family in _TEXT_FAMILIES:
        config = config_from_name(family)
        if config is None:
            continue
        if history == "continuous":
            config = type(config).model_validate({**config.model_dump(exclude_unset=True), "thinking_retention": "all"})
        try:
            renderer = create_renderer(tokenizer, config)
        except Exception:  # noqa: BLE001, S112 - another family's vocabulary: it asserts tokens this one lacks
            continue
        yield FamilyBridge(family, renderer, otherwise)


def _named(turn: ExactTurn, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool results with the name of the tool they answer: some families render it and cannot see the call."""
    names = {
        call_id: call["function"].get("name")
        for call_id, call in zip(call_ids(turn.answer), turn.answer.get("tool_calls") or (), strict=False)
    }
    return [
        {**m, "name": names[m["tool_call_id"]]}
        if m["role"] == "tool" and "name" not in m and names.get(m.get("tool_call_id"))
        else m
        for m in new
    ]
