"""A small tokenizer and small chat templates: everything a bridge must get right, without fetching a model.

The tokenizer is byte-level BPE with merges that tempt: ``H``+``AVING`` against ``HAV``+``ING``, runs of spaces and
newlines, digits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rollway_gateway.render.template import Template
from rollway_gateway.render.vocabulary import Vocabulary

SPECIAL = ("<|start|>", "<|end|>", "<|stop|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_MERGES = [
    "H A",
    "HA V",
    "A V",
    "AV I",
    "I N",
    "IN G",
    "AVI N",
    "AVIN G",
    "1 2",
    "12 3",
    "2 3",
    "Ċ Ċ",
    "Ġ Ġ",
    "e r",
    "t h",
]


def vocabulary(stop: str = "<|end|>") -> Vocabulary:
    """``stop`` is the end-of-sequence token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(m.split()) for m in _MERGES]
    tokens = [*alphabet, *("".join(m) for m in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=t.startswith("<|"), normalized=False) for t in SPECIAL])
    return Vocabulary(tokenizer, {"eos_token": stop, "bos_token": "<|start|>"})


CHATML = """
{%- if tools %}{{ '<|start|>tools\n' + (tools | tojson) + '<|end|>\n' }}{% endif %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|start|>assistant\n' }}
    {%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}
      {{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>\n' }}
  {%- else %}
    {{- '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}
"""
"""Append-only in every respect: keeps reasoning, shows tool calls."""

DROPS_REASONING = CHATML.replace(
    "{%- if m.reasoning_content %}", "{%- if m.reasoning_content and messages[-1].role == 'tool' %}"
)
"""Shows earlier reasoning only while the last message is a tool result, as Qwen3's does."""

_TOOLS = "{%- if tools %}{{ '<|start|>tools\n' + (tools | tojson) + '<|end|>\n' }}{% endif %}"
_HEADER = "{%- if add_generation_prompt %}"
MOVES_TOOLS = CHATML.replace(_TOOLS, "").replace(_HEADER, _TOOLS + _HEADER)
"""Writes the tools after the last message, as Command R's does: what was there before is elsewhere now."""

NUMBERED = CHATML.replace("{{- '<|start|>' + m.role + '\n'", "{{- '<|start|>' + m.role + loop.index | string + '\n'")
"""Numbers its messages: what follows an answer depends on all before it."""

NO_CLOSER = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}assistant: "
"""Ends an answer with nothing but a newline."""

TRIMS = CHATML.replace("{{- m.content }}", "{{- m.content | trim }}")


def template(source: str = CHATML, stop: str = "<|end|>", now: Callable[[], datetime] = datetime.now) -> Template:
    return Template(source, vocabulary(stop), name="tiny", now=now)
