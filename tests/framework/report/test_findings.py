"""What stands first on the page: the ladder, every number by head, what the words mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from gausslens.figures import CategoryMap, Heatmap
from gausslens.report import write
from gausslens.report.findings.by_head import by_head, table_of_heads
from gausslens.report.findings.ladder_table import rung_names
from gausslens.report.findings.terms import terms
from gausslens.report.svg.maps import initials
from gausslens.store.read_results import open as open_store

from . import sections
from .conftest import Page, Written, host_with
from .large import large_study

HERE = sections.__name__


@pytest.fixture
def ladder(written: Written) -> Path:
    return large_study(written, layers=3, heads=4)


def shown(store: Path) -> Page:
    return Page(write(store, host_with(f"{HERE}:every_kind")).read_text(encoding="utf-8"))


def test_the_ladder_has_a_column_for_each_null_by_what_it_is(ladder: Path) -> None:
    text = write(ladder, host_with(f"{HERE}:every_kind")).read_text(encoding="utf-8")
    table = text[text.index('<table class="ladder"') : text.index("</table>")]
    heads = re.findall(r"<th [^>]*>(.*?)</th>", table[: table.index("</thead>")])
    assert heads == [
        "statistic",
        "in",
        "the model before training<small>before, 8 draws</small>",
        "twins with its singular values<small>spectrum, 8 draws</small>",
        "explained by",
    ]
    rows = table.split("<tr>")[2:]
    assert len(rows) == 4
    # The planted arrangement departs from both, the planted size from the first alone.
    scores = next(row for row in rows if "a score" in row)
    sizes = next(row for row in rows if "a size" in row)
    assert ">arrangement</span>" in scores
    assert ">spectrum</span>" in sizes
    assert scores.count("background:") == 3
    assert sizes.count("background:") == 2


def test_every_cell_of_the_ladder_leads_to_a_figure_that_is_there(ladder: Path) -> None:
    page = shown(ladder)
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = [str(attributes["href"])[1:] for attributes in page.all("a")]
    assert set(links) <= set(anchors)
    assert {f"heads-trained-scores-score-{null}" for null in ("before", "spectrum")} <= set(links)


def test_every_number_of_heads_has_its_map_its_z_and_what_explains_it(ladder: Path) -> None:
    results = open_store(ladder)
    numbers, _ = by_head(results, [])
    assert numbers[0].variable in ("score", "size")
    assert {number.variable for number in numbers} == {"score", "size", "noise"}
    score = next(number for number in numbers if number.variable == "score")
    value, before, spectrum, explained = (each.figure for each in score.figures)
    assert isinstance(value, Heatmap)
    np.testing.assert_allclose(np.asarray(value.values), results["trained", "scores"]["score"].values)
    assert [each.null for each in score.figures] == ["", "before", "spectrum", ""]
    assert before.title == "z against the model before training (before)"
    z = results.against("trained", "scores", "spectrum")["score_z"].values
    assert isinstance(spectrum, Heatmap)
    np.testing.assert_allclose(np.asarray(spectrum.values), z)
    assert isinstance(explained, CategoryMap)
    assert np.asarray(explained.values)[1, 2] == "arrangement"
    assert "" in np.asarray(explained.values)
    assert explained.missing == "does not depart from the model before training (before)"


def test_the_table_of_heads_has_all_numbers_of_each_head(ladder: Path) -> None:
    results = open_store(ladder)
    numbers, _ = by_head(results, [])
    (table,) = table_of_heads(results, numbers)
    rows: list[Any] = list(getattr(table, "rows"))  # noqa: B009
    assert len(rows) == 12
    (fewer,) = table_of_heads(results, numbers, most=5)
    assert "Of 12 heads the 5 furthest from the null." in fewer.caption
    kept = {(row[0], row[1]) for row in getattr(fewer, "rows")}  # noqa: B009
    assert (1, 2) in kept
    assert len(kept) == 5


def test_what_a_plugin_draws_of_a_number_by_head_stands_once(ladder: Path) -> None:
    page = shown(ladder)
    assert [f for f in page.texts if f == "map"] == ["map"]
    by = page.text[page.text.index("Every number that each head has") : page.text.index("What it is.")]
    assert "\nmap\n" in by
    assert "gausslens.draw(store, section='probe.section')[0].plot()" in by


def test_words_are_explained_that_stand_on_the_page_and_no_others() -> None:
    said = str(terms(["Twins are drawn again; 3 statistics depart."]))
    assert re.findall(r"<dt>(.*?)</dt>", said) == ["statistic", "twin", "depart"]
    assert str(terms([])) == '<dl class="terms"></dl>'


@given(st.lists(st.text("abc", min_size=1, max_size=6), unique=True, max_size=8))
def test_first_letters_tell_names_apart(names: list[str]) -> None:
    found = initials(names)
    assert len(set(found)) == len(names)
    assert all(name.startswith(letters) for name, letters in zip(names, found, strict=True))


def test_a_rung_has_its_colour_whatever_else_is_on_the_ladder() -> None:
    short, long = rung_names(("before", "spectrum")), rung_names(("before", "mine", "spectrum"))
    assert long[: len(short)] == short
    assert len(set(long)) == len(long)


def test_a_dimension_beside_layers_and_heads_is_a_slider(written: Written) -> None:
    rng = np.random.default_rng(0)

    def made(shift: float) -> xr.Dataset:
        values = rng.normal(size=(2, 3, 4, 1))
        values[1, 2, 3] += shift
        dims = ("part", "layer", "head", "one")
        return xr.Dataset({"x": (dims, values)}, coords={"part": ["a", "b"], "layer": range(3), "head": range(4)})

    trained, chance = made(90.0), [made(0.0) for _ in range(8)]
    written.result("trained", "r", trained).compared("trained", "r", trained, chance)
    ((number,), _) = by_head(open_store(written.planned()), [])
    figure = number.figures[0].figure
    assert isinstance(figure, Heatmap)
    assert [(dial.name, tuple(dial.labels), dial.start) for dial in figure.dials] == [("part", ("a", "b"), 1)]
    assert np.asarray(figure.values).shape == (2, 3, 4)


def test_a_map_of_categories_is_drawn_alike_on_the_page_and_on_matplotlib() -> None:
    from gausslens.report.colours import category_colour
    from gausslens.report.matplotlib_figures import canvas, png
    from gausslens.report.page_figures import draw

    figure = CategoryMap(
        title="Families",
        caption="What each head is.",
        sources=(),
        values=[["band", "rare", ""], ["rare", "rare", "rare"]],
        categories=("band", "rare", "diagonal"),
        rows=(0, 1),
        columns=(0, 1, 2),
        row_name="layer",
        column_name="head",
        missing="none of them",
    )
    drawn = Page(str(draw(figure)))
    cells = [r for r in drawn.all("rect") if "cell" in str(r.get("class"))]
    expected = [category_colour(0), category_colour(1), None, *[category_colour(1)] * 3]
    assert [cell.get("fill") for cell in cells] == expected
    assert [t for t in drawn.texts if t in ("b", "r")] == ["b", "r", "b", "r", "r", "r", "r"]
    # What is on the map is in the key, and why a cell is grey; what is not on it is not.
    assert {"band", "rare", "none of them"} <= set(drawn.texts)
    assert "diagonal" not in drawn.texts
    made = canvas([(figure, {})])
    (axes,) = made.axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["b  band", "r  rare", "none of them"]
    assert png(made).startswith(b"\x89PNG")
