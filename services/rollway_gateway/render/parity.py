"""Whether an engine tokenises and renders as the template does here: asked of each worker before exact mode is used.

The same model folder can give other ids elsewhere: an engine started with another ``--chat-template``, or a tokenizer
class that its libraries rebuild instead of reading ``tokenizer.json`` (transformers 5 does so for DeepSeek V3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollway_gateway.render.probes import PROBES
from rollway_gateway.render.template import Options, Refused, Template

_AWKWARD = "naïve e\u0301 日本語 🙂  two\n\n\n three\t1234567 don't HAVING \u200b<b>{}"


def questions() -> dict[str, dict[str, Any]]:
    """Chat bodies by name, for vLLM's ``POST /tokenize`` (or chat's ``/render``): add the model's name."""
    asked: dict[str, dict[str, Any]] = {"awkward text": {"messages": [{"role": "user", "content": _AWKWARD}]}}
    for probe in PROBES:
        messages = [*probe.history, probe.answer, *probe.new]
        asked[probe.name] = {"messages": messages, **({"tools": probe.options.tools} if probe.options.tools else {})}
    return asked


def disagreements(template: Template, answers: Mapping[str, Sequence[int] | None]) -> list[str]:
    """The questions that the engine answers otherwise; empty: the engine prompts with the ids rendered here.

    Args:
        answers: the engine's token ids by question; None where it refused (400). Both refusing is agreement.
    """
    found = []
    for name, body in questions().items():
        try:
            ours = template.prompt_ids(body["messages"], Options(tools=body.get("tools"))).tolist()
        except Refused:
            ours = None
        theirs = answers.get(name)
        if ours != (None if theirs is None else list(theirs)):
            found.append(name)
    return found
