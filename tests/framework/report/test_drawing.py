"""Escaping, axes, numbers, colours and thinning."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.report.colours import SERIES_DARK, SERIES_LIGHT, ink, shade, stops
from gausslens.report.markup import Markup, element, escaped, visible
from gausslens.report.numbers import number
from gausslens.report.svg.axes import PlacedAxis, axis
from gausslens.report.thinning import SERIES, blocks, note, picked

anything = st.text(st.characters(exclude_categories=()))
values = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


@given(text=anything)
def test_any_text_comes_back_from_an_element_and_an_attribute(text: str) -> None:
    drawn = element("text", text, title=text)
    drawn.encode("utf-8")
    read = ET.fromstring(drawn)
    shown = visible(text)
    assert (read.text or "") == shown
    # XML turns white space in attributes into spaces; nothing else may change.
    assert read.attrib["title"].split() == shown.split()
    assert len(read) == 0


@given(text=anything)
def test_what_is_shown_has_no_control_characters(text: str) -> None:
    assert not any(ord(c) < 32 and c not in "\n\t" for c in visible(text))
    assert not any(0xD800 <= ord(c) <= 0xDFFF or c in "\u202e\u2066\u200f" for c in visible(text))


def test_markup_is_escaped_once() -> None:
    assert element("b", element("i", "<")) == "<b><i>&lt;</i></b>"
    assert escaped(Markup("<i>")) == "<i>"
    assert isinstance(escaped("<"), Markup)


def test_names_of_attributes() -> None:
    assert element("rect", class_="a", stroke_width=1.5, x=None) == '<rect class="a" stroke-width="1.5"/>'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-3, "−3"),  # noqa: RUF001
        (1234567.0, "1.23e6"),
        (12345.0, "12,345"),
        (0.5, "0.5"),
        (3.14159, "3.142"),
        (0.00012, "1.2e−4"),  # noqa: RUF001
        (math.inf, "∞"),
        (math.nan, "–"),  # noqa: RUF001
        (0.9999999, "1"),
    ],
)
def test_numbers_as_people_write_them(value: float, text: str) -> None:
    assert number(value) == text


@given(value=values.filter(lambda v: v == 0 or abs(v) > 1e-12))
def test_a_written_number_is_within_half_a_percent(value: float) -> None:
    back = float(number(value).replace("−", "-").replace(",", ""))  # noqa: RUF001
    assert back == pytest.approx(value, rel=5e-3)


@given(points=st.lists(values, max_size=20), log=st.booleans())
def test_an_axis_has_a_place_within_for_every_value(points: list[float], log: bool) -> None:
    made = axis(points, 10, 110, log)
    assert made.low < made.high
    for point in points:
        if made.has(point):
            assert 10 - 1e-6 <= made.at(point) <= 110 + 1e-6


@given(low=values, size=st.floats(1e-6, 1e12), log=st.booleans())
def test_ticks_are_few_rising_and_within(low: float, size: float, log: bool) -> None:
    if size < abs(low) * 1e-9:
        return
    made = axis([abs(low) + 1e-9, abs(low) + size] if log else [low, low + size], 0, 100, log)
    ticks = made.ticks()
    assert 2 <= len(ticks) <= 16
    assert all(a < b for a, b in itertools.pairwise(ticks))
    slack = (made.high - made.low) * 1e-6
    assert made.low - slack <= ticks[0]
    assert ticks[-1] <= made.high + slack


def test_ticks_of_an_axis_of_whole_numbers_are_whole() -> None:
    assert PlacedAxis(0, 3, 0, 1, whole=True).ticks() == [0, 1, 2, 3]


def lightness(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((lightness(one), lightness(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_one_sided_scale_rises_in_lightness_so_it_reads_without_colour() -> None:
    steps = [lightness(shade(s, False)) for s in np.linspace(0, 1, 60)]
    assert all(a < b for a, b in itertools.pairwise(steps))


def test_the_one_sided_scale_is_viridis() -> None:
    import matplotlib
    from matplotlib.colors import to_hex

    places = np.linspace(0, 1, len(stops(False)))
    assert stops(False) == [to_hex(colour) for colour in matplotlib.colormaps["viridis"](places)]


def test_the_two_sided_scale_falls_from_its_middle() -> None:
    steps = [lightness(shade(s, True)) for s in np.linspace(0, 1, 61)]
    assert all(a < b for a, b in itertools.pairwise(steps[:31]))
    assert all(a > b for a, b in itertools.pairwise(steps[30:]))


@pytest.mark.parametrize("diverging", [False, True])
def test_the_ink_in_a_cell_can_be_read(diverging: bool) -> None:
    inks = {"dark": "#000000", "light": "#ffffff"}
    assert min(contrast(shade(s, diverging), inks[ink(shade(s, diverging))]) for s in np.linspace(0, 1, 200)) > 4.5


def test_curves_stand_out_from_the_page_in_light_and_dark() -> None:
    # 3 : 1 is what graphics need by WCAG 2.1; sky blue and ochre on white come as the fifth and sixth, with dashes.
    assert min(contrast(c, "#fafaf8") for c in SERIES_LIGHT[:3]) > 3
    assert min(contrast(c, "#1e1e21") for c in SERIES_DARK) > 4.5
    assert len(SERIES_LIGHT) == len(SERIES_DARK) == SERIES


@given(rows=st.integers(1, 200), columns=st.integers(1, 200), most=st.integers(1, 64), seed=st.integers(0, 2**32 - 1))
def test_thinned_maps_keep_the_mean_of_each_block(rows: int, columns: int, most: int, seed: int) -> None:
    held = np.random.default_rng(seed).normal(size=(rows, columns))
    held[0, 0] = np.nan
    thinned = blocks(held, most)
    assert max(thinned.values.shape) <= most
    assert (thinned.note == "") == (rows <= most and columns <= most)
    ends = [*thinned.rows[1:], rows], [*thinned.columns[1:], columns]
    for i, (a, b) in enumerate(zip(thinned.rows, ends[0], strict=True)):
        for j, (c, d) in enumerate(zip(thinned.columns, ends[1], strict=True)):
            block = held[a:b, c:d]
            known = block[~np.isnan(block)]
            expected = known.mean() if known.size else np.nan
            np.testing.assert_allclose(thinned.values[i, j], expected, atol=1e-12)


@given(count=st.integers(0, 10_000), most=st.integers(2, 500))
def test_picked_points_are_spread_with_both_ends(count: int, most: int) -> None:
    at = picked(count, most)
    assert len(at) <= max(most, 0)
    assert np.all(np.diff(at) > 0)
    if count:
        assert (at[0], at[-1]) == (0, count - 1)
    assert (len(at) == count) == (count <= most)


def test_what_is_left_out_is_told() -> None:
    assert note(5, 5, "rows") == ""
    assert note(5, 1200, "rows") == "Thinned: 5 of 1,200 rows are shown."
