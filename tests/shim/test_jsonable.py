"""What JSON can hold, and the path that an error names for the rest."""

from __future__ import annotations

import enum
import json
import math
from array import array
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, SecretStr

from rollway_shim.jsonable import NotSerialisable, to_json


class Colour(enum.Enum):
    RED = "red"


class Step(BaseModel):
    tool: str
    took: timedelta


@dataclass
class Score:
    value: float
    steps: list[Step]


class ScriptedNdarray:
    """Looks as a numpy scalar or array does: a dtype, tolist() and item()."""

    dtype = "float32"

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value

    def item(self) -> Any:
        return self.value


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, True, None, "é"]}, {"a": [1, 2.5, True, None, "é"]}),
        ((1, Point(2, 3)), [1, [2, 3]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", 1}), ["b", 1]),
        (OrderedDict(b=1), {"b": 1}),
        (
            {1: "a", None: "b", False: "c", 2.5: "d", Colour.RED: "e"},
            {"1": "a", "null": "b", "false": "c", "2.5": "d", "red": "e"},
        ),
        (Colour.RED, "red"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(minutes=1), 60.0),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        (
            Score(1.0, [Step(tool="t", took=timedelta(seconds=2))]),
            {"value": 1.0, "steps": [{"tool": "t", "took": 2.0}]},
        ),
        (ScriptedNdarray(0.5), 0.5),
        ({"r": ScriptedNdarray([[1, 2], [3, 4]])}, {"r": [[1, 2], [3, 4]]}),
        ({ScriptedNdarray(7): 1}, {"7": 1}),
        ("half \ud83d of", "half \ufffd of"),
        ("\ud83d\ude00", "😀"),
        (2**70, 2**70),
    ],
)
def test_these_serialise(value: Any, expected: Any) -> None:
    converted = to_json(value)
    assert converted == expected
    assert json.loads(json.dumps(converted, allow_nan=False, ensure_ascii=False).encode()) == expected


def _loop() -> dict[str, Any]:
    inner: dict[str, Any] = {"again": []}
    inner["again"].append(inner)
    return inner


def _deep() -> Any:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"rewards": [1.0, math.nan]}, r"result\.rewards\[1\] is nan: JSON holds finite numbers only"),
        ({"rewards": math.inf}, r"result\.rewards is inf"),
        ({"rewards": ScriptedNdarray([0.0, -math.inf])}, r"result\.rewards\[1\] is -inf"),
        ({"m": {"when": object()}}, r"result\.m\.when is a builtins\.object, which JSON cannot hold"),
        ({"blob": b"x"}, r"result\.blob is a builtins\.bytes.*base64"),
        ({"xs": [1, {2: array("i")}]}, r"result\.xs\[1\]\.2 is a array\.array"),
        ({"key": Step.model_construct(tool=SecretStr("s"), took=timedelta())}, r"result\.key\.tool is a pydantic"),
        ({"f": lambda: 0}, r"result\.f is a builtins\.function"),
        ({"cls": Score}, r"result\.cls is a builtins\.type"),
        ({(1, 2): 3}, r"result has the key \(1, 2\)"),
        ({1: "a", "1": "b"}, r"result has two keys that read '1'"),
        (_loop(), r"result\.again\[0\] contains itself"),
        (_deep(), r"nested too deeply"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_these_are_refused_and_named(value: Any, named: str) -> None:
    with pytest.raises(NotSerialisable, match=named):
        to_json(value)


def test_the_same_object_twice_is_no_loop() -> None:
    step = [1]
    assert to_json({"a": step, "b": step}) == {"a": [1], "b": [1]}
