"""The whole plugin through a run with a null: results in a store, columns of the null, and figures on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
from gausslens import Results
from gausslens.figures import Heatmap, Lines, Scatter, Table
from gausslens.testing import host_of
from gausslens_attention.curve_figures import curves
from gausslens_attention.pooled_figures import pooled
from gausslens_attention.role_figures import roles
from gausslens_attention.swap_figures import swaps

STUDY: dict[str, Any] = {
    "gausslens": 1,
    "name": "all",
    "model": {"path": "builtin:testing"},
    "prompts": {"source": "text", "text": ["again and again", "<b>&amp;", "one two one two"]},
    "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 2}},
    "analyses": [
        {"use": "attention.band", "with": {"w": [0, 4], "budget": [0, 3]}},
        {"use": "attention.lowrank", "with": {"rank": [1, 4]}},
        {"use": "attention.masks", "with": {"keys": [2, 6]}},
        {"use": "attention.kernels", "with": {"features": [8]}},
        {"use": "attention.roles", "heads": [1, 2]},
        {"use": "attention.pooling", "with": {"directions": 1, "hidden": 1, "steps": 5}},
        {"use": "attention.swap", "with": {"which": ["all", "each"], "keys": [3], "band": [1], "budget": [0]}},
    ],
    "against": "chance",
    "report": True,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    host = host_of("models", "attention", "reinit")
    return gausslens.run(STUDY, store=Path(tmp_path_factory.mktemp("store")), host=host, shown=False)


def test_every_number_has_its_null(results: Results) -> None:
    wanted = {
        "attention.band": "output_error",
        "attention.lowrank": "kl",
        "attention.masks": "distance_per_row",
        "attention.kernels": "excess",
        "attention.roles": "share",
        "attention.pooling": "explained",
        "attention.swap": "kl_each",
    }
    for label, name in wanted.items():
        compared = results.against("trained", label)
        assert f"{name}_z" in compared
        assert compared[name].dims == results["trained", label][name].dims
    assert "distance_z" not in results.against("trained", "attention.band")
    assert results["trained", "attention.roles"]["head"].values.tolist() == [1, 2]


def test_curves_show_what_was_measured(results: Results) -> None:
    figures = curves(results)
    lines = [f for f in figures if isinstance(f, Lines)]
    assert len(lines) == 3 * 2  # all but kernels, for the variant and its null
    band = next(f for f in lines if f.title == "Output error of band plus sparse error, trained")
    data = results["trained", "attention.band"]
    assert [s.name for s in band.series] == ["budget 0", "budget 3", "causal mean", "identity"]
    np.testing.assert_allclose(band.series[1].y, data["output_error"].sel(budget=3).mean(("layer", "head")))
    assert band.series[2].reference
    tables = [f for f in figures if isinstance(f, Table)]
    assert len(tables) == 4
    masks = next(f for f in tables if f.title.endswith("masks before the softmax"))
    assert [row[:2] for row in masks.rows[:2]] == [("trained", "window"), ("trained", "dilated")]
    assert sum(isinstance(f, Scatter) for f in figures) == 4


def test_roles_are_drawn_as_a_map(results: Results) -> None:
    figures = roles(results)
    [shown] = [f for f in figures if isinstance(f, Heatmap)]
    np.testing.assert_array_equal(shown.values, results["trained", "attention.roles"]["family"].values)
    counts = next(f for f in figures if isinstance(f, Table) and f.title == "Families of heads")
    assert [row[0] for row in counts.rows] == ["trained", "chance"]
    assert sum(counts.rows[0][1:5]) == 4
    assert sum(counts.rows[1][1:5]) == pytest.approx(4)


def test_scoring_functions_are_told_by_what_they_explain(results: Results) -> None:
    table, heads = pooled(results)
    assert isinstance(table, Table)
    assert isinstance(heads, Heatmap)
    assert [row[:2] for row in table.rows[:2]] == [("trained", "dot"), ("trained", "multiplicative")]
    data = results["trained", "attention.pooling"]["explained"]
    assert table.rows[0][3] == pytest.approx(float(data.sel(scoring="dot").median()))
    np.testing.assert_array_equal(heads.values, data.sel(scoring="dot").values)


def test_what_is_lost_is_told_by_setting_and_by_head(results: Results) -> None:
    figures = swaps(results)
    table = next(f for f in figures if isinstance(f, Table))
    data = results["trained", "attention.swap"]
    assert [row[1] for row in table.rows if row[0] == "trained"] == data["setting"].values.tolist()
    maps = [f for f in figures if isinstance(f, Heatmap)]
    assert len(maps) == min(6, data.sizes["setting"])
    np.testing.assert_array_equal(maps[0].values, data["loss_change_each"].isel(setting=0).values)
    assert any(isinstance(f, Scatter) for f in figures)


def test_the_page_shows_them(results: Results) -> None:
    page = (Path(results.path) / "report.html").read_text(encoding="utf-8")
    for words in ("Families of heads", "What the model loses", "What is enough: low rank", "Soft heads and hard heads"):
        assert words in page
