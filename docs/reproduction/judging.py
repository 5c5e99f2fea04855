"""Expressions over numbers, and the verdicts that rest on them: the first rule whose condition holds says its sentence.

An expression is Python's arithmetic, comparisons, and, or, not, and the functions below; nothing else is evaluated. A
rule has ``when``, over all models (``builtin.deficit``, its error ``builtin.error.deficit``, the mean of a null
``builtin.chance.deficit``), or ``each``, which must hold of every model, called ``it``. Where none holds the numbers
have changed and the sentences have not: that is an error, with the numbers in it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "median": np.median,
    "sqrt": np.sqrt,
    "log": np.log,
    "exp": np.exp,
    "any": np.any,
    "all": np.all,
}


class BadExpression(Exception):
    """An expression that cannot be evaluated, and why."""


class VerdictBroken(Exception):
    """No sentence of a verdict holds of the numbers."""


def evaluated(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression over names; of a comparison of arrays whether it holds of all their cells."""
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise BadExpression(f"{expression!r}: {error.msg}") from error
    try:
        return _value(tree, names)
    except BadExpression as error:
        raise BadExpression(f"{expression!r}: {error}") from None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.Name(id=name):
            return _looked_up(names, name)
        case ast.Attribute(value=of, attr=name):
            return _looked_up(_value(of, names), name)
        case ast.Subscript(value=of, slice=place):
            return np.asarray(_value(of, names))[int(_value(place, names))]
        case ast.BoolOp(op=op, values=values):
            held = (bool(np.all(_value(each, names))) for each in values)
            return all(held) if isinstance(op, ast.And) else any(held)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared(ops, [_value(each, names) for each in (left, *others)])
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(each, names) for each in given))
    raise BadExpression(f"{ast.unparse(node)} is neither a number, a text, a name nor a known function")


def _compared(ops: Sequence[ast.cmpop], values: Sequence[Any]) -> bool:
    for op, left, right in zip(ops, values, values[1:], strict=False):
        if type(op) not in _OPERATORS:
            raise BadExpression(f"{type(op).__name__} is no comparison of numbers")
        if not np.all(_OPERATORS[type(op)](np.asarray(left), np.asarray(right))):
            return False
    return True


def _looked_up(names: Any, name: str) -> Any:
    if not isinstance(names, Mapping) or name not in names:
        known = ", ".join(map(str, names)) if isinstance(names, Mapping) else "nothing, it is a number"
        raise BadExpression(f"there is no {name}; there is {known}")
    found = names[name]
    if found is None:  # a step that never comes: no comparison holds of it
        return np.nan
    return np.asarray(found, dtype=float) if isinstance(found, list) else found


def names_of(numbers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of one model as names: ``deficit``, ``error.deficit`` and, of each null, ``chance.deficit``."""
    nulls = {null for one in numbers.values() for null in one["nulls"]}
    found: dict[str, Any] = {name: one["value"] for name, one in numbers.items()}
    found["error"] = {name: one["error"] for name, one in numbers.items() if one["error"] is not None}
    for null in nulls:
        found[null] = {name: one["nulls"][null]["mean"] for name, one in numbers.items() if null in one["nulls"]}
    return found


def verdict(rules: Sequence[Mapping[str, str]], models: Mapping[str, Mapping[str, Any]], row: str = "") -> str:
    """The sentence of the first rule that holds, with the numbers in its braces: "from {builtin.deficit:.2f} on".

    A rule that names a model which has no numbers is passed over.
    """
    names = {model: names_of(numbers) for model, numbers in models.items()}
    for rule in rules:
        if _named_models(rule) <= set(names) and _holds(rule, names):
            return re.sub(r"\{([^{}:]+)(?::([^{}]+))?\}", lambda m: _filled(m, names), rule["says"])
    said = "\n".join(f"  {key}: {rule[key]}" for rule in rules for key in ("when", "each") if key in rule)
    raise VerdictBroken(f"{row or 'a verdict'}: none of these holds any more:\n{said}\nof {names}")


def _named_models(rule: Mapping[str, str]) -> set[str]:
    """The models that a rule names, in its condition or its sentence."""
    inside = " ".join([rule.get("when", ""), *re.findall(r"\{([^{}]+)\}", rule["says"])])
    return set(re.findall(r"\b(builtin|stories15m|smollm2)\.", inside))


def _holds(rule: Mapping[str, str], names: Mapping[str, Any]) -> bool:
    if "when" not in rule and "each" not in rule:
        raise BadExpression(f"{rule['says']!r} rests on nothing: give it `when` or `each`")
    when = bool(evaluated(rule["when"], names)) if "when" in rule else True
    each = all(bool(evaluated(rule["each"], {"it": it})) for it in names.values()) if "each" in rule else True
    return when and each


def _filled(match: re.Match[str], names: Mapping[str, Any]) -> str:
    return format(float(evaluated(match[1], names)), match[2] or ".3g")
