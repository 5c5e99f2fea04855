"""Figures as data: what fits together is taken, what does not is refused with its title."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from gausslens import figures
from gausslens.figures import (
    BadFigure,
    CategoryMap,
    Dial,
    Heatmap,
    Line,
    Lines,
    Panels,
    Scatter,
    Source,
    Spectrum,
    Table,
    Text,
    Texts,
    TokenMap,
    error_band,
    head_curves,
)
from gausslens.maths.resampling import delete_group_error

ABOUT: dict[str, Any] = {"title": "Ranks", "caption": "What is seen.", "sources": [Source("trained", "values", "rank")]}
PANEL = ((Line("a", [1.0]),),)
MAP: dict[str, Any] = {"rows": [0, 1], "columns": "abc", "row_name": "layer", "column_name": "head"}


def test_a_source_is_a_line_of_python() -> None:
    assert Source("trained", "a.b", "rank").line == "store['trained', 'a.b']['rank']"


def test_arrays_become_read_only_copies() -> None:
    values = np.ones((2, 3), dtype=np.float32)
    figure = Heatmap(**ABOUT, **MAP, values=values)
    values[:] = 7
    held = np.asarray(figure.values)
    assert held.dtype == np.float64
    assert held.max() == 1
    with pytest.raises(ValueError, match="read-only"):
        held[0, 0] = 2
    assert tuple(figure.rows) == ("0", "1")
    assert figure.sources == (Source("trained", "values", "rank"),)


def test_categories_are_words_and_what_is_none_of_them_is_missing() -> None:
    figure = CategoryMap(**ABOUT, **MAP, values=[["one", "two", ""], ["two", "two", "one"]], categories=("two", "one"))
    drawing = figure.drawing()
    np.testing.assert_array_equal(drawing.values, [[1, 0, np.nan], [0, 0, 1]])
    assert drawing.categories == ("two", "one")
    with pytest.raises(BadFigure, match="'three' is none of its categories \\(two, one\\)"):
        CategoryMap(**ABOUT, **MAP, values=[["three"] * 3] * 2, categories=("two", "one"))


def test_spectra_are_sorted_and_gaps_dropped() -> None:
    figure = Spectrum(**ABOUT, series=[Line("one", [1.0, np.nan, 3.0, 2.0])], edges=(0, 4))
    np.testing.assert_array_equal(figure.series[0].y, [3, 2, 1])
    assert figure.edges == (0.0, 4.0)


def test_cells_of_tables_are_plain_values() -> None:
    table = Table(**ABOUT, columns=["a", "b"], rows=[[np.float32(1.5), np.int64(2)], [None, ("x",)]])
    assert table.rows == ((1.5, 2), (None, "('x',)"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Heatmap(**{**ABOUT, "title": " "}, **MAP, values=np.ones((2, 3))), "needs a title and a caption"),
        (lambda: Heatmap(**{**ABOUT, "caption": 3}, **MAP, values=np.ones((2, 3))), "its caption is not text"),
        (lambda: Heatmap(**{**ABOUT, "sources": ["x"]}, **MAP, values=np.ones((2, 3))), "not of the type Source"),
        (lambda: Heatmap(**ABOUT, **MAP, values=np.ones(3)), r"values has shape \(3,\); it must have 2"),
        (lambda: Heatmap(**ABOUT, **MAP, values=np.ones((3, 3))), "2 row labels for 3 values"),
        (lambda: Heatmap(**ABOUT, **MAP, values=np.ones((2, 2))), "3 column labels for 2 values"),
        (lambda: Heatmap(**ABOUT, **MAP, values=[["a", "b", "c"]] * 2), "values is not an array of numbers"),
        (lambda: TokenMap(**ABOUT, values=np.ones((2, 2)), queries=["a"], keys=["a", "b"]), "1 query tokens"),
        (lambda: Lines(**ABOUT, x=[1, 2], x_name="n", series=()), "it has no series"),
        (lambda: Lines(**ABOUT, x=[1, 2], x_name="n", series=(Line("a", [1]),)), "y of 'a' has 1 values, x has 2"),
        (lambda: Lines(**ABOUT, x=[1], x_name="n", series=(Line("a", [1], [0]),)), "one side of a band only"),
        (
            lambda: Panels(**ABOUT, x=[1], x_name="n", dials=(Dial("a", "bc"),), panels=PANEL),
            "1 panels, and its dials 2",
        ),
        (lambda: Panels(**ABOUT, x=[1, 2], x_name="n", dials=(Dial("a", "b"),), panels=PANEL), "has 1 values, x has 2"),
        (lambda: Panels(**ABOUT, x=[1], x_name="n", dials=(Dial("a", "b", 1),), panels=PANEL), "starts at 1 and has 1"),
        (lambda: Spectrum(**ABOUT, series=()), "it has no series"),
        (lambda: Spectrum(**ABOUT, series=(Line("a", [1]),), edges=(4, 1)), "its edges are 4 and 1"),
        (lambda: Scatter(**ABOUT, x=[1], y=[1, 2], x_name="a", y_name="b"), "x has 1 values, y has 2"),
        (lambda: Scatter(**ABOUT, x=[1], y=[1], x_name="a", y_name="b", labels=[]), "0 labels for 1 values"),
        (lambda: Table(**ABOUT, columns=["a"], rows=[[1], [1, 2]]), "row 1 has 2 cells for 1 columns"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(BadFigure, match=words) as caught:
        make()
    assert type(caught.value.code) is int


def test_texts_are_kept_as_they_are() -> None:
    assert Texts(**ABOUT, texts=[Text("a", "<b>\n")]).texts == (Text("a", "<b>\n"),)


def test_a_kind_of_figure_is_found_by_its_module_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(figures.kinds())
    assert before == [
        *("CategoryMap", "Custom", "Heatmap", "Lines", "Panels", "Scatter", "Spectrum", "Table", "Texts", "TokenMap")
    ]
    with pytest.raises(AttributeError, match="has no attribute 'Sayings'"):
        _ = figures.Sayings
    source = "from gausslens.figures.texts import Texts\n\n\nclass Sayings(Texts):\n    pass\n"
    (tmp_path / "sayings.py").write_text(source, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
        figures.kinds.cache_clear()
        assert isinstance(figures.Sayings(**ABOUT, texts=()), Texts)
        assert sorted(figures.kinds()) == sorted([*before, "Sayings"])
    figures.kinds.cache_clear()
    del sys.modules["gausslens.figures.sayings"], figures.sayings


def test_a_band_over_prompts_is_the_error_of_the_mean_that_is_drawn() -> None:
    rng = np.random.default_rng(0)
    without = rng.normal(size=(10, 3, 4)) + rng.normal(size=(10, 1, 1))
    data = xr.Dataset(
        {
            "x": (("layer", "head"), np.zeros((3, 4))),
            "x_se": (("layer", "head"), delete_group_error(without)),
            "x_without": (("left_out", "layer", "head"), without),
        }
    )
    band = error_band(data, "x", "layer")
    np.testing.assert_allclose(band, delete_group_error(without.mean(axis=2)))
    own = error_band(data.drop_vars("x_without"), "x", "layer")
    np.testing.assert_allclose(own, data["x_se"].mean("head"))
    assert (band <= own + 1e-12).all()
    assert error_band(data.drop_vars(["x_without", "x_se"]), "x", "layer") is None


def test_curves_of_heads_have_a_panel_for_each_layer_and_the_mean_of_the_heads() -> None:
    values = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    coords = {"layer": [3, 7], "head": [0, 1, 2], "w": [0, 2, 4, 8, 16]}
    array = xr.DataArray(values, dims=("layer", "head", "draw", "w"), coords=coords, attrs={"units": "nat"})
    about = {"title": "Curves", "caption": "Errors.", "sources": [Source("trained", "values", "error")]}
    figure = head_curves(array, "w", **about, nulls={"chance": array + 1})
    assert isinstance(figure, Panels)
    assert [(dial.name, tuple(dial.labels)) for dial in figure.dials] == [("layer", ("3", "7"))]
    names = [line.name for line in figure.panels[1]]
    assert names == ["mean of the heads", "chance, mean", *(f"layer 7, head {head}" for head in range(3))]
    assert [line.faint for line in figure.panels[1]] == [False, False, True, True, True]
    np.testing.assert_allclose(figure.panels[1][0].y, values[1].mean(axis=(0, 1)))
    np.testing.assert_allclose(figure.panels[1][1].y, values[1].mean(axis=(0, 1)) + 1)
    np.testing.assert_allclose(figure.panels[0][4].y, values[0, 2].mean(axis=0))
    np.testing.assert_allclose(np.asarray(figure.x), [0, 2, 4, 8, 16])
    by_rank = head_curves(array.drop_vars("w"), "w", **about)
    assert isinstance(by_rank, Panels)
    np.testing.assert_allclose(np.asarray(by_rank.x), [1, 2, 3, 4, 5])
