"""Arithmetic on text, without eval: only numbers, + - * / // % ** and parentheses are understood."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

Number = int | float

LONGEST = 200
"""Characters of an expression."""
LARGEST = 1e15
"""Of any intermediate result, so that no expression keeps the machine busy."""

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def evaluate(expression: str) -> str:
    """The value of ``expression`` as text: "84", "2.5".

    Raises:
        ValueError: not arithmetic, too long, too large, or without a value (division by zero).
    """
    if len(expression) > LONGEST:
        raise ValueError(f"expression is over {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as e:
        raise ValueError(f"not an arithmetic expression: {expression!r:.80}") from e
    except (ZeroDivisionError, OverflowError) as e:
        raise ValueError(str(e)) from e
    return str(int(value)) if value == int(value) else f"{value:.10g}"


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise ValueError("exponent is over 64")
        return _bounded(_BINARY[type(node.op)](left, right))
    raise ValueError(f"only numbers, + - * / // % ** and parentheses are understood, not {ast.unparse(node)!r:.80}")


def _bounded(value: Number) -> Number:
    if isinstance(value, complex) or not abs(value) <= LARGEST:
        raise ValueError("the result is not a number of ordinary size")
    return value
