"""The demo agent's pure parts: the calculator and the reward."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

AGENT = Path(__file__).parents[2] / "deploy/demo/agent"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"demo_{name}", AGENT / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


calculator, reward = _load("calculator"), _load("reward")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("6 * 7", "42"), (" (1 + 2) * -3 ", "-9"), ("7 / 2", "3.5"), ("7 // 2 + 7 % 2", "4"), ("2 ** 10", "1024"),
     ("1 / 3", "0.3333333333"), ("4.0", "4")],
)  # fmt: skip
def test_it_calculates(expression: str, value: str) -> None:
    assert calculator.evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "2 +", "x", "__import__('os')", "[1]", "1 if 1 else 2", "'a' * 9", "True", "2 ** 65", "9 ** 9 ** 9", "1 / 0",
     "1e400", "(-8) ** 0.5", "0 ** -1", "1" * 201, "(" * 150 + ")" * 40, "1j", "2\x00", "1e15 * 10"],
)  # fmt: skip
def test_anything_else_is_a_value_error(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        calculator.evaluate(expression)


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ("#### 42", "42", 1.0),
        ("#### 1,234.0", "1234", 0.993478),
        ("#### $5", "5", 0.997619),
        ("#### 41", "42", 0.1 + 0.05 * (1 - 1 / 42) + 0.05),
        ("42", "42", 0.9),
        ("", "42", 0.0),
        ("I cannot tell", "42", 0.0),
    ],
)
def test_the_reward_follows_its_table(text: str, answer: str, score: float) -> None:
    assert reward.ArithmeticReward()(response_text=text, ground_truth=answer) == pytest.approx(score, abs=1e-6)


def test_right_is_always_worth_more_than_wrong_and_brief_more_than_long() -> None:
    score = reward.ArithmeticReward()
    right = score(response_text="so it must be " * 50 + "42", ground_truth="42")
    wrong = score(response_text="#### 41", ground_truth="42")
    assert right > 0.8 > 0.2 >= wrong
    long = score(response_text="The answer is, as far as I can see: #### 41", ground_truth="42")
    assert 0 < long < wrong
    with pytest.raises(ValueError, match="float"):
        score(response_text="#### 1", ground_truth="about seven")
