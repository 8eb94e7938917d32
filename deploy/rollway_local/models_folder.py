"""What every recipe of `rollway_local.models` shares: its error, the chat template, the tokenizer's settings."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any


class ModelError(RuntimeError):
    """A model cannot be made; the message says what to do."""


def chat_template() -> str:
    """The append-only ChatML template with hermes-style tool calls that both models carry."""
    return resources.files("rollway_local").joinpath("chatml.jinja").read_text(encoding="utf-8")


def settle(out: Path, template: str, **fields: Any) -> None:
    """Give the saved tokenizer the chat template and plain, machine-independent settings. Call it last."""
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for local in ("is_local", "local_files_only", "backend", "name_or_path", "chat_template"):
        config.pop(local, None)
    for implied in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        config.pop(implied, None)
    config.update(tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False, **fields)
    config["chat_template"] = template
    path.write_text(json.dumps(config, indent=1, ensure_ascii=False))
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    (out / "model.safetensors").chmod(0o644)
