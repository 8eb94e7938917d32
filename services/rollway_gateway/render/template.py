"""A model's chat template: messages to text, and text to the ids that vLLM's own chat would prompt with."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from rollway_gateway.render.environment import content_format, environment
from rollway_gateway.render.messages import Message, engine_messages, engine_tools
from rollway_gateway.render.vocabulary import Vocabulary, read_json
from rollway_wire.problems import RollwayError, Unprocessable


class Refused(Unprocessable):
    """The template raised: it does not render these messages (vLLM answers 400 to them)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What, besides messages, decides a rendering."""

    tools: Sequence[Mapping[str, Any]] | None = None
    """As the agent sent them."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """``chat_template_kwargs``: enable_thinking and the like."""


class Template:
    """A compiled chat template with its tokenizer. Immutable; safe to share between sessions and threads."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        vocabulary: Vocabulary,
        *,
        name: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """
        Args:
            source: the template, or several by name: ``tool_use`` renders calls with tools, ``default`` the others.

        Raises:
            Unprocessable: not a jinja2 template, or several without a ``default``.
        """
        self.name = name
        self.vocabulary = vocabulary
        named = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in named:
            raise Unprocessable(f"{name}: several chat templates, none named 'default'")
        env = environment(now)
        try:
            self._formats = {key: content_format(env, text) for key, text in named.items()}
            self._compiled = {key: env.from_string(text) for key, text in named.items()}
        except jinja2.TemplateSyntaxError as e:
            raise Unprocessable(f"{name}: the chat template does not compile: {e}") from e
        self.sha256 = hashlib.sha256("\0".join(t for _, t in sorted(named.items())).encode()).hexdigest()
        """Of the template source."""

    @classmethod
    def load(cls, folder: str | Path, *, chat_template: str | None = None) -> Template:
        """From a model folder: ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``.

        Args:
            chat_template: used in place of the model's own, as vLLM's ``--chat-template``.

        Raises:
            Unprocessable: no fast tokenizer, no chat template, or a broken one.
        """
        folder = Path(folder)
        vocabulary = Vocabulary.load(folder)
        source = chat_template or _own_template(folder)
        if not source:
            raise Unprocessable(f"{folder}: the tokenizer has no chat template")
        return cls(source, vocabulary, name=folder.name)

    def text(self, messages: Sequence[Message], options: Options, *, prompt: bool = True) -> str:
        """The rendered conversation; with ``prompt`` it ends with the header of the assistant's next turn.

        Raises:
            Refused: the template raised.
            BadRequest: messages no chat request may hold; `NotText` for images.
        """
        key = "tool_use" if options.tools and "tool_use" in self._compiled else "default"
        variables = {
            **self.vocabulary.special_tokens,
            "documents": None,
            **options.kwargs,
            "messages": engine_messages(messages, self._formats[key]),
            "tools": engine_tools(options.tools),
            "add_generation_prompt": prompt,
        }
        try:
            return self._compiled[key].render(variables)
        except RollwayError:
            raise
        except Exception as e:  # a template is foreign code: it may raise anything
            raise Refused(f"the chat template refuses these messages: {type(e).__name__}: {e}") from e

    def prompt_ids(self, messages: Sequence[Message], options: Options) -> array[int]:
        """int32 ids of the whole conversation, as vLLM's chat would prompt with. Raises as `text`."""
        return self.vocabulary.encode(self.text(messages, options))


def _own_template(folder: Path) -> str | Mapping[str, str] | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        own = read_json(folder / name).get("chat_template")
        if isinstance(own, list):
            return {entry["name"]: entry["template"] for entry in own}
        if isinstance(own, str):
            return own
    return None
