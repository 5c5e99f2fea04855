"""Sliders' maps as they stand in the page, the ends of the colours, and pages that are full."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.figures import BadFigure, ColourMap, Dial, Heatmap
from gausslens.report import write
from gausslens.report.colours import scale, shares
from gausslens.report.svg.maps import MISSING, sliders
from gausslens.report.thinning import FINE, Most, thinned

from . import sections
from .conftest import Page, host_with
from .sections import ABOUT

HERE = sections.__name__


class Held(HTMLParser):
    """The numbers that a page's first sliders hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if "data-map" in dict(attrs):
            self.found = dict(attrs)

    def values(self) -> np.ndarray:
        low, high = json.loads(self.found["data-range"] or "")[:2]
        stored = np.frombuffer(base64.b64decode(self.found["data-map"] or ""), "<u2")
        return np.where(stored == MISSING, np.nan, low + (high - low) * stored / (MISSING - 1))


def maps(values: np.ndarray, dials: tuple[Dial, ...], most: Most = FINE) -> tuple[ColourMap, str]:
    """Maps as the page has them, and what was left out."""
    rows, columns = (tuple(map(str, range(size))) for size in values.shape[-2:])
    whole = ColourMap(
        values=values, rows=rows, columns=columns, row_name="row", column_name="column", units="nat", dials=dials
    )
    found, note = thinned(whole, most)
    assert isinstance(found, ColourMap)
    return found, note


@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 4),
    size=st.integers(1, 6),
    seed=st.integers(0, 99),
    spread=st.booleans(),
)
def test_stored_maps_come_back_within_their_step(layers: int, heads: int, size: int, seed: int, spread: bool) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(layers, heads, size, size)) * (10.0 ** rng.integers(-9, 9) if spread else 1.0)
    values[0, 0, 0, 0] = np.nan
    found, _ = maps(values, (Dial("layer", range(layers)), Dial("head", range(heads))))
    drawn = sliders(found, scale(values, None, clip=True))
    back = Held(drawn or "").values().reshape(values.shape)
    step = np.ptp(values[np.isfinite(values)]) / (MISSING - 1) if np.isfinite(values).any() else 0.0
    np.testing.assert_allclose(back, values, atol=0.51 * step + 1e-12 * np.nanmax(np.abs(values), initial=0.0))


def test_the_map_shown_first_is_where_the_dials_start() -> None:
    values = np.arange(24.0).reshape(2, 3, 2, 2)
    found, _ = maps(values, (Dial("layer", "ab", 1), Dial("head", "xyz", 2)))
    np.testing.assert_array_equal(found.first, values[1, 2])


@given(
    counts=st.tuples(st.integers(1, 90), st.integers(1, 90)), start=st.integers(0, 89), stored=st.integers(1000, 40_000)
)
def test_many_maps_are_fewer_and_coarser_and_keep_the_start(counts: tuple[int, int], start: int, stored: int) -> None:
    start = min(start, counts[0] - 1)
    values = np.broadcast_to(np.arange(counts[0], dtype=float)[:, None, None, None], (*counts, 20, 20))
    dials = (Dial("layer", tuple(f"layer {i}" for i in range(counts[0])), start), Dial("head", range(counts[1])))
    found, note = maps(values, dials, Most(stored=stored))
    # Places that dials need at least (two, and the start) may take a little more than there is room for.
    assert found.values.size <= max(4 * stored, 3 * 2 * 16 * 16)
    kept = found.dials[0]
    assert tuple(kept.labels)[kept.start] == f"layer {start}"
    np.testing.assert_array_equal(found.first, start)
    assert (note == "") == (found.values.shape == values.shape)


def test_one_extreme_cell_does_not_wash_out_the_others() -> None:
    values = np.linspace(-3, 3, 40).reshape(5, 8).copy()
    values[2, 3] = 5000.0
    made = scale(values, 0.0, clip=True)
    assert made.high < 10
    assert (made.above, made.below) == (True, False)
    assert made.note.endswith("1 of 40 cells lie beyond, the furthest at 5,000.")
    assert made.colour(5000.0) == made.colour(made.high)
    assert made.colour(-3.0) != made.colour(-1.0) != made.colour(1.0)
    assert scale(values, 0.0, clip=False).high == 5000


@given(seed=st.integers(0, 500), centre=st.sampled_from([None, 0.0]), tail=st.floats(0.5, 3.0))
def test_few_cells_lie_beyond_the_ends(seed: int, centre: float | None, tail: float) -> None:
    values = np.random.default_rng(seed).standard_t(tail, size=(10, 10))
    made = scale(values, centre, clip=True)
    assert np.sum((values < made.low) | (values > made.high)) <= 10
    assert bool(made.note) == (made.above or made.below)


def test_cells_without_an_extreme_keep_the_whole_range() -> None:
    made = scale(np.random.default_rng(0).normal(size=(10, 10)), None, clip=True)
    assert not made.note


def test_small_shares_of_attention_are_told_from_none() -> None:
    made = shares(np.array([[0.0, 0.01, 1.0]]), None)
    assert (made.low, made.high) == (0.0, 1.0)
    assert made.colour(0.01) != made.colour(0.0)
    assert shares(np.array([[-1.0, 1.0]]), None).power == 1


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ((Dial("layer", "ab"),), "3 labels of the dial"),
        ((Dial("layer", "abc", 3),), "starts at 3 and has 3 places"),
        ((), "must have 2 dimension"),
    ],
)
def test_dials_that_do_not_fit_are_refused(dials: tuple[Dial, ...], words: str) -> None:
    shape = {"rows": range(2), "columns": range(2), "row_name": "a", "column_name": "b"}
    if words.startswith("3 labels"):
        words = "2 labels of the dial 'layer' for 3 values"
    with pytest.raises(BadFigure, match=words):
        Heatmap(title="map", **ABOUT, values=np.zeros((3, 2, 2)), dials=dials, **shape)


def test_many_maps_and_many_figures_leave_the_page_light(study: Path) -> None:
    for section in ("many_maps", "heavy"):
        path = write(study, host_with(f"{HERE}:{section}"))
        page = Page(path.read_text(encoding="utf-8"))
        assert path.stat().st_size < 20_000_000
        assert any(text.startswith("Thinned") for text in page.texts) == (section == "many_maps")
    left = [text for text in page.texts if text.startswith("Left out, for the page is full")]
    drawn = [rect for rect in page.all("figure") if str(rect["class"]).endswith("TokenMap")]
    assert len(drawn) == 60
    assert not left
