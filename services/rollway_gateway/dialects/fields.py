"""Reading a request's fields: each is understood, known to change nothing, handed to the engine, or refused by name.

A null is an absent field, everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rollway_gateway.openai_errors import AgentError

ENGINE_FIELDS = frozenset({
    "top_k", "min_p", "repetition_penalty", "length_penalty", "presence_penalty", "frequency_penalty", "seed",
    "logit_bias", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "thinking_token_budget", "include_reasoning",
    "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "structured_outputs", "priority", "cache_salt",
    "vllm_xargs", "request_id", "session_id", "repetition_detection",
})  # fmt: skip
"""vLLM's extensions, which its chat route takes under the same names: handed on unread."""

_WORDS: dict[type, str] = {str: "a string", int: "an integer", bool: "a boolean", dict: "an object", list: "a list"}


def refused(message: str, param: str | None = None) -> AgentError:
    """A 400 that names the field."""
    return AgentError(400, message, param=param)


def at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def get(body: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    """The field if it is given and of ``kind``, else None.

    Raises:
        AgentError: 400, it is of another kind.
    """
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        path = at(where, name)
        raise refused(f"{path} must be {_WORDS[kind]}, got {type(value).__name__}", path)
    return value


def need(body: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    """The field, of ``kind``.

    Raises:
        AgentError: 400, it is missing or of another kind.
    """
    value = get(body, name, kind, where)
    if value is None:
        path = at(where, name)
        raise refused(f"{path} is required", path)
    return value


def an_object(value: Any, where: str) -> dict[str, Any]:
    """Raises:
    AgentError: 400, an entry of a list is no object."""
    if not isinstance(value, dict):
        raise refused(f"{where} must be an object, got {type(value).__name__}", where)
    return value


def check_known(body: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
    """Refuse every given field outside ``known``.

    Raises:
        AgentError: 400 for the first of them.
    """
    for name, value in body.items():
        if value is not None and name not in known:
            path = at(where, name)
            raise refused(f"{path} is not supported: it has no counterpart in a chat request to the engine", path)


def check_only(body: Mapping[str, Any], allowed: Mapping[str, Collection[Any]], where: str = "") -> None:
    """Refuse fields that may be given, but only with a value that changes nothing.

    Raises:
        AgentError: 400 for the first with another value.
    """
    for name, values in allowed.items():
        value = body.get(name)
        if value is not None and value not in values:
            path = at(where, name)
            raise refused(f"{path} {value!r} is not supported, only {' or '.join(map(repr, values))}", path)


def handed_on(body: Mapping[str, Any], names: Collection[str] = ENGINE_FIELDS) -> dict[str, Any]:
    """The given fields among ``names``."""
    return {name: value for name, value in body.items() if name in names and value is not None}
