"""The agent's function, as the shim calls it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Handler:
    function: Callable[..., Any]
    name: str
    is_async: bool
    takes_context: bool
    """Its second parameter is named ``context``."""

    def __call__(self, payload: dict[str, Any], context: Any) -> Any:
        """The result of a sync function, the coroutine of an async one."""
        return self.function(payload, context) if self.takes_context else self.function(payload)


def handler_of(function: Callable[..., Any]) -> Handler:
    """Describe ``function(payload)`` or ``function(payload, context)``, sync or async.

    Raises:
        TypeError: not callable, a generator, or with parameters that nothing would fill.
    """
    if not callable(function):
        raise TypeError(f"rollout_entrypoint decorates a function, got {type(function).__name__}")
    bare = function
    while isinstance(bare, functools.partial):
        bare = bare.func
    if not inspect.isroutine(bare):
        bare = type(bare).__call__
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare):
        raise TypeError(f"{name} is a generator: a rollout returns one dict, it does not stream")
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = len(parameters) >= 2 and parameters[1].name == "context"
    try:
        inspect.signature(function).bind(*([None] * (2 if takes_context else 1)))
    except TypeError as e:
        raise TypeError(f"{name} must take (payload) or (payload, context): {e}") from e
    return Handler(function, name, inspect.iscoroutinefunction(bare), takes_context)
