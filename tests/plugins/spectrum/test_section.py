"""What the report shows of spectrum.effect: a table, curves over swept values, entropies, texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gausslens import Result, Results
from gausslens.figures import Heatmap, Lines, Table, Texts
from gausslens_spectrum.figures.effect import _attention, _points, _spread, _texts, effect

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


def result_of(variant: str, data: xr.Dataset, *swept: str) -> Result:
    return Result(variant, "effect", data, swept=swept)


def test_where_there_are_too_many_points_every_variant_is_seen() -> None:
    swept = xr.Dataset({"entropy": ("k", np.arange(9.0))}, {"k": np.arange(9)})
    plain = xr.Dataset({"entropy": 0.5})
    results = [result_of("top", swept, "k"), result_of("bottom", swept, "k"), result_of("sharp", plain)]
    points = [_points(result) for result in results]
    assert len(_spread(points, 19)) == 19
    assert list(_spread(points, 9)) == [*(f"{v}, k {k}" for v in ("top", "bottom") for k in (0, 4, 8)), "sharp"]
    assert list(_spread(points, 2)) == ["top, k 0", "bottom, k 0"]


def test_captions_count_what_is_left_out() -> None:
    """Nine swept values and a variant that moves nothing: at most six curves of ten, eight maps of nine."""
    dims = ("k", "layer", "head")
    base = {"base_entropy": (dims[1:], np.ones((2, 3)))}
    moved = {n: (dims, np.ones((9, 2, 3))) for n in ("entropy", "divergence")}
    still = {"entropy": (dims[1:], np.ones((2, 3))), "divergence": (dims[1:], np.zeros((2, 3)))}
    axes = {"layer": [0, 1], "head": [0, 1, 2]}
    top = xr.Dataset({**moved, **base}, {"k": np.arange(9), **axes})
    unmoved = result_of("still", xr.Dataset({**still, **base}, axes))
    lines, *maps = _attention("effect", [result_of("top", top, "k"), unmoved])
    assert isinstance(lines, Lines)
    shown = sum(not line.reference for line in lines.series)
    assert f" {shown} of 10 variants and swept values are shown; the others are in the data." in lines.caption
    assert shown <= 6
    assert len(maps) == 8
    assert all(" 8 of 9 variants and swept values that move attention are shown" in m.caption for m in maps)
    few, *maps = _attention("effect", [result_of("top", top.isel(k=[0, 1]), "k"), unmoved])
    assert "shown" not in few.caption
    assert len(maps) == 2
    assert not any("shown" in m.caption for m in maps)


def test_texts_that_are_left_out_are_counted() -> None:
    dims = ("k", "prompt")
    words = {"base_text": (dims[1:], ["a"] * 5), "after": (dims[1:], ["Once"] * 5)}
    data = xr.Dataset({"text": (dims, [["b"] * 5] * 30), **words}, {"k": np.arange(30), "prompt": np.arange(5)})
    texts = _texts("effect", [result_of("top", data, "k")])
    assert len(texts) == 4
    left_out = "24 of 30 variants and swept values are shown; the others are in the data."
    prompts = "4 of 5 prompts are shown; the others are in the data."
    assert {text.caption for text in texts} == {f"{left_out} {prompts} After: Once"}
    assert isinstance(texts[0], Texts)
    assert len(texts[0].texts) == 1 + 24
