"""Chat templates compiled as the transformers library compiles them: same sandbox, same filters, same globals.

Source of the semantics: transformers `utils/chat_template_utils.py` (5.x) and, for the content format, vLLM
`renderers/hf.py` (0.28). Both are re-stated here so that a gateway needs jinja2 alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training masks elsewhere; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
             separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:  # fmt: skip
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(now: Callable[[], datetime] = datetime.now) -> jinja2.Environment:
    """A sandbox for untrusted chat templates. ``now`` is the clock behind the template's ``strftime_now``."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda fmt: now().strftime(fmt)
    return made


def content_format(env: jinja2.Environment, source: str) -> Literal["string", "openai"]:
    """What vLLM hands a template as a message's content: ``openai`` (a list of parts) where it loops over it.

    A loop over ``message['content']`` of a message taken from ``messages`` (or a variable or slice of it), or over a
    variable named ``content``.
    """
    tree = env.parse(source)
    lists = _aliases(tree, "messages")
    loops = list(tree.find_all(nodes.For))
    messages = {
        loop.target.name
        for loop in loops
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in lists)
    }
    for loop in loops:
        if isinstance(loop.iter, nodes.Name) and loop.iter.name == "content":
            return "openai"
        if any(_reads(loop.iter, name, "content") for name in messages):
            return "openai"
    return "string"


def _aliases(tree: nodes.Node, name: str) -> set[str]:
    """``name`` and the variables assigned from it, directly or by way of one another."""
    known, grown = {name}, True
    while grown:
        grown = False
        for assign in tree.find_all(nodes.Assign):
            target = assign.target
            if not isinstance(target, nodes.Name) or target.name in known:
                continue
            if any(_reads(assign.node, n) for n in known):
                known.add(target.name)
                grown = True
    return known


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is ``name`` (or ``name[key]``), seen through filters, tests and slices."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _reads(node.node, name) and node.attr == key
