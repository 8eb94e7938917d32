"""The tiny model taught, by its tokenizer and template alone, to write reasoning between <think> marks.

Two of its tokens become the marks, each a single token as in Qwen3 and DeepSeek-R1. The template keeps reasoning in the
history and, asked with ``opened``, begins answers inside a block.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
_ANSWER = "'<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n'"
_THOUGHT = (
    "'<|im_start|>' + message.role + '\\n' + ('<think>' + (message.reasoning or '') + '</think>'"
    " if message.reasoning or (message.role == 'assistant' and enable_thinking is false) else '')"
    " + content + '<|im_end|>\\n'"
)
_HEADER = "{{- '<|im_start|>assistant\\n' -}}"
_HEADERS = (
    "{{- '<|im_start|>assistant\\n' + ('<think>' if opened else '')"
    " + ('<think></think>' if enable_thinking is false else '') -}}"
)


def thinking_model(tiny: Path, folder: Path) -> Path:
    """Copy the tiny model's folder to ``folder`` with two tokens and the template changed; returns ``folder``."""
    shutil.copytree(tiny, folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    last = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]  # made by the last merges, so nothing is made of them
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if "".join(_pair(m)) not in last]
    for old, mark in zip(last, (OPEN, CLOSE), strict=True):
        token_id = vocabulary[mark] = vocabulary.pop(old)
        tokenizer["added_tokens"].append(_added(token_id, mark))
    for token in tokenizer["added_tokens"]:
        token["special"] &= "tool_call" not in token["content"]
    file.write_text(json.dumps(tokenizer))
    _teach(folder)
    return folder


def _pair(merge: Any) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _added(token_id: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": text, **flags}


def _teach(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    named = folder / "chat_template.jinja"
    template: str = named.read_text() if named.exists() else config["chat_template"]
    assert template.count(_ANSWER) == 1
    assert template.count(_HEADER) == 1
    template = template.replace(_ANSWER, _THOUGHT).replace(_HEADER, _HEADERS)
    config.pop("chat_template", None)
    file.write_text(json.dumps(config))
    named.write_text(template)
