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
OPEN, CLOSE = 3, 4
"""<think> and </think> of the model that reasons."""
TEMPLATE = """
{%- for m in messages %}
  {{- '<bos>' + m.role + '\n' + THOUGHT(m.content or '') }}
  {%- for call in m.tool_calls or [] %}
    {{- 'CALL' + call.function.name + 'WITH' + (call.function.arguments | tojson) + 'END' }}
  {%- endfor %}
  {{- '<eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<bos>assistant\nOPENED' }}{% endif %}
"""
_THOUGHT = "('<think>' + m.reasoning + '</think>' if m.reasoning else '') + "

FORMS = {
    "hermes": ('<tool_call>{"name": "', '", "arguments": ', "}</tool_call>"),
    "function": ("<function=", ">", "</function>"),
}
"""How a template writes a tool call: around its name and its arguments."""


def write_model(folder: Path, *, thinks: bool = False, calls: str = "hermes") -> Path:
    """Write the folder's files; returns the folder.

    Args:
        thinks: the marks of reasoning are tokens, history shows it, and answers begin inside of it.
        calls: one of `FORMS`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {char: FIRST_BYTE + byte for byte, char in _bytes_to_chars().items()} | {"<bos>": BOS, "<eos>": EOS}
    if thinks:
        vocabulary |= {"<think>": OPEN, "</think>": CLOSE}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<bos>", "<eos>")])
    if thinks:
        marks = [AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")]
        tokenizer.add_tokens(marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (folder / "chat_template.jinja").write_text(_template(calls, thinks=thinks))
    return folder


def _template(calls: str, *, thinks: bool) -> str:
    template = TEMPLATE.replace("THOUGHT", _THOUGHT if thinks else "").replace("OPENED", "<think>" if thinks else "")
    for place, text in zip(("CALL", "WITH", "END"), FORMS[calls], strict=True):
        template = template.replace(f"'{place}'", f"'{text}'")
    return template


def _bytes_to_chars() -> dict[int, str]:
    """The byte-level alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(others)}


def template_text(
    messages: list[dict[str, Any]], calls_as: str = "hermes", *, thinks: bool = False
) -> list[tuple[str, str]]:
    """(role, text) of each message as the template writes it."""
    out = []
    begin, between, end = FORMS[calls_as]
    for m in messages:
        calls = ""
        for call in m.get("tool_calls") or ():
            function = call["function"]
            arguments = json.dumps(json.loads(function["arguments"]), ensure_ascii=False)
            calls += begin + function["name"] + between + arguments + end
        thought = m.get("reasoning") or m.get("reasoning_content")
        shown = f"<think>{thought}</think>" if thinks and m["role"] == "assistant" and thought else ""
        out.append((m["role"], shown + _content(m.get("content")) + calls))
    return out


def _content(content: Any) -> str:
    """Images leave no token here."""
    if not isinstance(content, list):
        return content or ""
    return "\n".join(part["text"] for part in content if "text" in part)
