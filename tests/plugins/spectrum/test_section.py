"""What the report shows of spectrum.effect: a table, curves over swept values, entropies, texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gausslens import Results
from gausslens.figures import Heatmap, Lines, Table, Texts
from gausslens_spectrum.section import _spread, effect

Runs = Callable[..., Results]


@pytest.fixture
def store(gausslens_run: Runs) -> Results:
    """Two edits that sweep the same values, one with draws; one that sweeps nothing."""
    matrices = ["QK"]
    ks = {"k": [1, 4, 2]}
    return gausslens_run(
        {
            "prompts": {"source": "text", "text": ["again and again", "one two one two", "<b>&amp;"]},
            "variants": {
                "top": [{"edit": "spectrum.keep", "matrices": matrices, "sweep": ks}],
                "random": {
                    "edits": [{"edit": "spectrum.keep-random", "matrices": matrices, "sweep": ks}],
                    "draws": 2,
                },
                "sharp": [{"edit": "spectrum.scale", "alpha": 2.0}],
            },
            "analyses": [{"use": "spectrum.effect", "with": {"tokens": 5}}],
            "report": True,
        },
        "models",
        "spectrum",
    )


def test_variants_that_sweep_the_same_values_share_a_figure(store: Results) -> None:
    figures = effect(store)
    [loss] = [f for f in figures if isinstance(f, Lines) and f.title.startswith("Change of the loss over k")]
    assert [line.name for line in loss.series] == ["top", "random"]
    assert np.asarray(loss.x).tolist() == [1, 2, 4]
    top = store["top", "spectrum.effect"]
    np.testing.assert_array_equal(loss.series[0].y, top["loss_change"].sel(k=[1, 2, 4]))
    np.testing.assert_array_equal(loss.series[0].low, top["loss_change_low"].sel(k=[1, 2, 4]))
    random = store["random", "spectrum.effect"]["loss_change"].mean("draw").sel(k=[1, 2, 4])
    np.testing.assert_allclose(loss.series[1].y, random)


def test_every_variant_and_swept_value_is_in_the_table(store: Results) -> None:
    [table] = [f for f in effect(store) if isinstance(f, Table)]
    names = [row[0] for row in table.rows]
    assert names == [*(f"{v}, k {k}" for v in ("top", "random") for k in (1, 4, 2)), "sharp"]
    assert table.rows[-1][2] == float(store["sharp", "spectrum.effect"]["loss_change"])


def test_entropies_stand_beside_those_of_the_unedited_model(store: Results) -> None:
    figures = effect(store)
    [lines] = [f for f in figures if isinstance(f, Lines) and f.title.startswith("Attention entropy")]
    assert lines.series[-1].reference
    base = store["sharp", "spectrum.effect"]["base_entropy"].mean("head")
    np.testing.assert_allclose(lines.series[-1].y, base)
    assert any(isinstance(f, Heatmap) for f in figures)


def test_texts_stand_side_by_side(store: Results) -> None:
    texts = [f for f in effect(store) if isinstance(f, Texts)]
    assert len(texts) == 3
    assert [t.name for t in texts[0].texts][:2] == ["unedited", "top, k 1"]
    assert texts[2].caption == "After: <b>&amp;"


def test_the_page_is_drawn(store: Results) -> None:
    page = (Path(store.path) / "report.html").read_text(encoding="utf-8")
    assert "Change of the loss over k" in page
    assert "&lt;b&gt;&amp;amp;" in page


def test_where_there_are_too_many_points_every_variant_is_seen() -> None:
    swept = xr.Dataset({"entropy": ("k", np.arange(9.0))}, {"k": np.arange(9)})
    plain = xr.Dataset({"entropy": 0.5})
    found = {"top": swept, "bottom": swept, "sharp": plain}
    assert len(_spread(found, 19)) == 19
    assert list(_spread(found, 9)) == [*(f"{v}, k {k}" for v in ("top", "bottom") for k in (0, 4, 8)), "sharp"]
    assert list(_spread(found, 2)) == ["top, k 0", "bottom, k 0"]
