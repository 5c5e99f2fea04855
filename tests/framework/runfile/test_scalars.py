"""Scalars as YAML 1.2 reads them, whichever parser of PyYAML gives the events."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gausslens.runfile.nodes import unfit
from gausslens.runfile.problems import Problems
from gausslens.runfile.text import compose, scalar

AS_WRITTEN = [
    # What YAML 1.1 takes for something else.
    "no", "No", "NO", "yes", "Yes", "on", "On", "off", "OFF", "y", "n", "Y", "N",
    "12:30:45", "1:30", "190:20:30", "2024-01-01", "2024-01-01 10:00:00", "2001-12-14t21:59:43.10-05:00",
    "0b1010", "1_000", "1_000.5", "0x", "0o", "0o8", "0xG1", "=", "<<x",
    # Numbers with leading zeros: identifiers.
    "0123", "007", "-01", "+00", "00", "01.5", "0123e4",
    # Nearly numbers.
    ".", "-", "+", "e5", "1e", "1e+", ".e5", "1.2.3", "1..2", "+-1", "--1", "1 2", "1,5", "0x1.8p3", "1e5.5", "١٢",
    # Nearly words.
    "nan", "NaN", "inf", "Infinity", "-inf", ".Nan", "+.nan", "none", "None", "nil", "tRUE", "fALSE", "nUll", "~~",
    "v1.0", "W_Q", "gaussian.moments", "builtin:clue-tiny", "hub:owner/name@main", "a#b", "ünïcode", "名前",
]  # fmt: skip

VALUES: list[tuple[str, Any]] = [
    ("", None), ("~", None), ("null", None), ("Null", None), ("NULL", None),
    ("true", True), ("True", True), ("TRUE", True), ("false", False), ("False", False), ("FALSE", False),
    ("0", 0), ("-0", 0), ("+7", 7), ("123", 123), ("-45", -45), ("0o17", 15), ("0xFF", 255), ("0xff", 255),
    ("1e-5", 1e-5), ("1E5", 1e5), ("1e+3", 1000.0), ("-1e3", -1000.0), ("0e0", 0.0), ("1.10", 1.1), ("1.", 1.0),
    (".5", 0.5), ("-.5", -0.5), ("+0.5e-3", 0.0005), ("0.0", 0.0), ("6.02e23", 6.02e23),
    (".inf", math.inf), ("+.inf", math.inf), ("-.inf", -math.inf), (".Inf", math.inf), (".INF", math.inf),
]  # fmt: skip

LOADERS = [yaml.Loader, pytest.param(getattr(yaml, "CLoader", yaml.Loader), id="libyaml")]


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_what_stays_text(text: str) -> None:
    assert scalar(text) == text
    assert isinstance(scalar(text), str)


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_what_has_a_value(text: str, value: Any) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_not_a_number(text: str) -> None:
    assert math.isnan(scalar(text))  # type: ignore[arg-type]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("form", ["a: {}", "a: [{}]", "- {}", "? {}", "a: {{b: {}}}"])
@pytest.mark.parametrize("text", ["no", "0123", "12:30:45", "1e-5", "1.10", "2024-01-01", "1_000"])
def test_the_same_wherever_it_stands(text: str, form: str, loader: Any) -> None:
    problems = Problems("x")
    node = compose(form.format(text), "x", problems, loader=loader)
    assert node is not None
    assert not len(problems)
    while node.nodes and form[0] != "?":
        node = node.nodes[0]
    found = next(iter(node.value)) if form[0] == "?" else node.value
    assert found == (text if form[0] == "?" else scalar(text))  # a key is what is written


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize(("text", "value"), VALUES)
def test_in_quotes_all_is_text(text: str, value: Any, quote: str) -> None:
    node = compose(f"{quote}{text}{quote}", "x", Problems("x"))
    assert node is not None
    assert node.value == text
    assert node.text is None


@given(st.integers())
def test_whole_numbers_round_trip(number: int) -> None:
    assert scalar(str(number)) == number
    assert bool(unfit(number)) == (not -(2**63) <= number < 2**63)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_round_trip(number: float) -> None:
    assert scalar(repr(number)) == number


@given(st.text())
def test_any_text_is_some_scalar(text: str) -> None:
    found = scalar(text)
    assert found is None or isinstance(found, bool | int | float | str)
    if isinstance(found, str):
        assert found == text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2**63, -(2**63) - 1, "a\0", "\ud800", "a\udfffb"])
def test_values_that_no_run_file_may_hold(value: Any) -> None:
    assert unfit(value)


@pytest.mark.parametrize("digits", ["9" * 50, "9" * 5000, "-" + "9" * 900_000, "0x" + "f" * 900_000])
def test_a_number_of_any_length_is_read_and_refused(digits: str) -> None:
    assert unfit(scalar(digits))


def test_a_float_too_large_is_refused() -> None:
    assert unfit(scalar("1e999"))
