"""Values as JSON: what an agent returns, turned into what JSON can hold, or an error that names the place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel


class NotSerialisable(TypeError):
    """A value that JSON cannot hold; the message names its path."""


def to_json(value: Any, path: str = "result") -> Any:
    """``value`` in terms of dict, list, str, int, float, bool and None.

    Taken besides those: tuples, sets (sorted where they can be), enums (their value), pydantic models, dataclasses,
    dates and times (ISO 8601), durations (seconds), decimals, UUIDs and paths (as text), and anything array-like that
    has a ``dtype`` and ``tolist()`` (numpy scalars and arrays, torch tensors; none of them is imported here).

    Raises:
        NotSerialisable: any other type, NaN or infinity, a key that is not a scalar, keys that fall together as text,
            or a value that contains itself.
    """
    try:
        return _convert(value, path, set())
    except RecursionError as e:
        raise NotSerialisable(f"{path} is nested too deeply") from e


def _convert(value: Any, path: str, above: set[int]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _convert(value.value, path, above)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotSerialisable(f"{path} is {float(value)}: JSON holds finite numbers only")
        return float(value)
    leaf = _leaf(value)
    if leaf is not None:
        return leaf
    if id(value) in above:
        raise NotSerialisable(f"{path} contains itself")
    above.add(id(value))
    try:
        return _container(value, path, above)
    finally:
        above.discard(id(value))


def _text(value: str) -> str:
    """Lone surrogates (halves of a character that a streamed answer cut in two) have no UTF-8: paired ones are joined,
    others become U+FFFD, as any decoder would show them."""
    try:
        value.encode()
        return str(value)
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _leaf(value: Any) -> str | float | None:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID | PurePath):
        return str(value)
    return None


def _container(value: Any, path: str, above: set[int]) -> Any:
    if isinstance(value, BaseModel):
        return _convert(value.model_dump(), path, above)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _mapping(value, path, above)
    if isinstance(value, Set):
        value = _ordered(value)
    if isinstance(value, list | tuple):
        return [_convert(v, f"{path}[{i}]", above) for i, v in enumerate(value)]
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        return _convert(value.tolist(), path, above)
    kind = type(value)
    hint = "; decode or base64-encode it" if isinstance(value, bytes | bytearray | memoryview) else ""
    raise NotSerialisable(f"{path} is a {kind.__module__}.{kind.__qualname__}, which JSON cannot hold{hint}")


def _ordered(values: Set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _mapping(value: Mapping[Any, Any], path: str, above: set[int]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key, path)
        if name in out:
            raise NotSerialisable(f"{path} has two keys that read {name!r} as text")
        out[name] = _convert(item, f"{path}.{name}", above)
    return out


def _key(key: Any, path: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return _text(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float) and math.isfinite(key):
        return str(key)
    if hasattr(key, "dtype") and callable(getattr(key, "item", None)):
        return _key(key.item(), path)
    raise NotSerialisable(f"{path} has the key {key!r:.80}: keys are text or finite numbers")
