"""Scalars as YAML 1.2 reads them (core schema), and the values that no run file may hold.

One difference: a number with a leading zero, as ``0123``, is text. YAML 1.1 takes it for octal and 1.2 for decimal; a
scientist means an identifier, and where a number is wanted the error says what to write.
"""

from __future__ import annotations

import math
import re
from typing import Any

_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*)(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+)"
)
_STARTS = "+-.0123456789"  # of a number
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_LARGEST = 2**63  # numbers are stored as 64-bit integers
_DIGITS = 4000  # Python reads no longer ones; cut there, a number is still too large

Scalar = None | bool | int | float | str


def scalar(text: str) -> Scalar:
    """The value of a scalar written without quotes."""
    if text in _WORDS:
        found: Scalar = _WORDS[text]
        return found
    if text[0] not in _STARTS:
        return text
    if _DECIMAL.fullmatch(text):
        return int(text[:_DIGITS])
    if _OTHER_BASE.fullmatch(text):
        return int(text[:_DIGITS], 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def unfit(value: Scalar) -> str:
    """Why a value cannot be in a run file: it could not be stored, or not be part of a key. Empty where it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return "is too large: whole numbers have at most 64 bits"
    if isinstance(value, str) and _NO_TEXT.search(value):
        return "holds a zero character, or half of a surrogate pair"
    return ""
