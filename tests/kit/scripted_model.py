"""A model folder without weights whose tokenizer and chat template are the scripted engine's: one token per byte.

Its template writes tool calls anew with spaces where the scripted engine samples them without, as real templates and
models differ: a history that is rendered again is not what was sampled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, FIRST_BYTE = 1, 2, 10
TEMPLATE = """
{%- for m in messages %}
  {{- '<bos>' + m.role + '\n' + (m.content or '') }}
  {%- for call in m.tool_calls or [] %}
    {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
    {{- '</tool_call>' }}
  {%- endfor %}
  {{- '<eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<bos>assistant\n' }}{% endif %}
"""


def write_model(folder: Path) -> Path:
    """Write the folder's files; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {char: FIRST_BYTE + byte for byte, char in _bytes_to_chars().items()} | {"<bos>": BOS, "<eos>": EOS}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<bos>", "<eos>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _bytes_to_chars() -> dict[int, str]:
    """The byte-level alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(others)}


def template_text(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(role, text) of each message as the template writes it."""
    out = []
    for m in messages:
        calls = ""
        for call in m.get("tool_calls") or ():
            function = call["function"]
            arguments = json.dumps(json.loads(function["arguments"]), ensure_ascii=False)
            calls += f'<tool_call>{{"name": "{function["name"]}", "arguments": {arguments}}}</tool_call>'
        out.append((m["role"], _content(m.get("content")) + calls))
    return out


def _content(content: Any) -> str:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""
