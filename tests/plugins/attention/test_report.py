"""The whole plugin through a run with a null: results in a store, columns of the null, and figures on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens import Result, Results
from gausslens.figures import CategoryMap, Heatmap, Lines, Panels, Scatter, Table, pooled_over
from gausslens.testing import host_of
from gausslens_attention.figures.curves import curves
from gausslens_attention.figures.pooling import _functions, pooling
from gausslens_attention.figures.roles import roles
from gausslens_attention.figures.swap import swap

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
        {"use": "attention.roles", "heads": [1, 2], "with": {"least": 0.0}},
        {"use": "attention.roles", "as": "strict", "with": {"least": 1.0}},
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
    assert [s.name for s in band.series] == ["budget 0", "budget 3", band.series[2].name]
    np.testing.assert_allclose(band.series[1].y, data["output_error"].sel(budget=3).mean(("layer", "head")))
    assert band.series[1].low is None
    low = next(f for f in lines if f.title == "Output error of low rank, trained")
    of_draws = results["trained", "attention.lowrank"]
    for line in low.series[:-1]:
        sd = of_draws["output_error_draws_sd"].sel(kind=line.name)
        assert (line.low is not None) == bool((sd > 0).any()) == (line.name in ("sketch", "linformer"))
        if line.low is not None:
            wide = 2 * np.sqrt((sd**2).sum(("layer", "head"))) / (sd.sizes["layer"] * sd.sizes["head"]) / 2
            np.testing.assert_allclose(np.asarray(line.high) - np.asarray(line.y), wide)
    assert band.series[2].reference
    trivial = data["trivial_output_error"].mean(("layer", "head")).to_series()
    assert band.series[2].name == f"best trivial: {trivial.idxmin()}"
    assert band.series[2].y[0] == pytest.approx(trivial.min())
    tables = [f for f in figures if isinstance(f, Table)]
    assert len(tables) == 4
    kernels = next(f for f in tables if f.title.endswith("linear attention"))
    spread = {row[1]: row[-1] for row in kernels.rows if row[0] == "trained"}
    assert kernels.columns[-1] == "sd over draws"
    assert spread["elu"] == 0 < spread["performer 8"]
    masks = next(f for f in tables if f.title.endswith("masks before the softmax"))
    assert [row[:2] for row in masks.rows[:2]] == [("trained", "window"), ("trained", "dilated")]
    scatters = [f for f in figures if isinstance(f, Scatter)]
    assert len(scatters) == 4 + 4 * 2
    stored = next(f for f in scatters if f.title == "Distance against storage: masks before the softmax, trained")
    masks_data = results["trained", "attention.masks"]
    for name, x, y in zip(stored.labels, stored.x, stored.y, strict=True):
        kind, _, keys = name.removeprefix("oracle beside ").partition(", keys ")
        one = masks_data.sel(kind=kind, keys=int(keys))
        assert x == pytest.approx(float(one["scalars"]))
        assert y == pytest.approx(float(one["oracle" if name.startswith("oracle") else "distance"].mean()))


def test_roles_are_drawn_as_a_map(results: Results) -> None:
    figures = roles(results)
    data = results["trained", "attention.roles"]
    shares, strict = (f for f in figures if isinstance(f, Heatmap))
    assert strict.title == shares.title
    (shown,) = (f for f in figures if isinstance(f, CategoryMap))  # where no head has a role, there is no map of them
    names = data["family_name"].values.tolist()
    assert list(shown.categories) == names
    expected = [[names[i] if i < len(names) else "" for i in row] for row in data["family"].values.astype(int)]
    np.testing.assert_array_equal(shown.values, expected)
    held = next(f for f in figures if isinstance(f, Panels))
    squares = data["singular"].isel(layer=0, head=0).values ** 2
    last = next(line for line in held.panels[0] if line.faint)
    np.testing.assert_allclose(last.y, np.nancumsum(squares) / np.nansum(squares))
    np.testing.assert_allclose(shares.values, data["share"].transpose("family_name", "layer", "head").values)
    counts = next(f for f in figures if isinstance(f, Table) and f.title == "Families of heads")
    assert [row[0] for row in counts.rows] == ["trained", "chance"]
    assert sum(counts.rows[0][1:5]) == 4
    assert sum(counts.rows[1][1:5]) == pytest.approx(4)
    assert counts.rows[0][5] == int(((data["family"] == 2) & (data["column"] == 0)).sum())


def test_scoring_functions_are_told_by_what_they_explain(results: Results) -> None:
    table, heads = pooling(results)
    assert isinstance(table, Table)
    assert isinstance(heads, Heatmap)
    assert [row[:2] for row in table.rows[:2]] == [("trained", "dot"), ("trained", "multiplicative")]
    data = results["trained", "attention.pooling"]["explained"]
    assert table.rows[0][3] == pytest.approx(float(data.sel(scoring="dot").median()))
    np.testing.assert_array_equal(heads.values, data.sel(scoring="dot").values)


def test_what_is_fitted_to_no_head_has_no_share() -> None:
    explained = np.array([[[0.95, np.nan], [0.5, np.nan]], [[np.nan, np.nan], [np.nan, np.nan]]])
    numbers = ("scoring", [2.0, 6.0])
    dims = ("scoring", "layer", "head")
    data = xr.Dataset(
        {"explained": (dims, explained), "explained_fitted": (dims, explained), "numbers": numbers},
        {"scoring": ["dot", "additive"], "layer": [0, 1], "head": [0, 1]},
    )
    table = _functions("attention.pooling", [Result("trained", "attention.pooling", data)])
    assert table.rows[0][3:] == pytest.approx((0.725, 0.725, 0.5))
    assert np.isnan(table.rows[1][3:]).all()


def test_what_is_lost_is_told_by_setting_and_by_head(results: Results) -> None:
    figures = swap(results)
    enough, costs = (f for f in figures if isinstance(f, Table))
    data, twins = (results[variant, "attention.swap"] for variant in ("trained", "chance"))
    assert [row[0] for row in costs.rows] == data["setting"].values.tolist()
    assert costs.columns[2] == "loss change, trained"
    assert costs.columns[-1] == "kl, chance"
    np.testing.assert_allclose([row[2] for row in costs.rows], data["loss_change"])
    np.testing.assert_allclose([row[-1] for row in costs.rows], twins["kl"].mean("draw"))
    assert enough.columns[3:6] == ("enough", "scalars", "loss change")
    assert enough.columns[-2:] == ("kl, trained", "kl, chance")
    assert [row[1] for row in enough.rows] == data["kind"].values.tolist()
    smallest = data.attrs["smallest_enough"].split(" (")[0]
    assert f"Smallest that is enough: trained {smallest}" in enough.caption
    assert f"at most {data.attrs['kl_tolerance']:.3g} nats" in enough.caption
    for _, kind, setting, met, scalars, change, _, _, kl, of_twins in enough.rows:
        needed = float(data["scalars_needed"].sel(kind=kind))
        assert change == pytest.approx(float(data["loss_change"].sel(setting=setting)))
        assert kl == pytest.approx(float(data["kl"].sel(setting=setting)))
        assert of_twins == pytest.approx(float(twins["kl"].sel(setting=setting).mean()))
        verdict = float(data["enough"].sel(setting=setting))
        assert met == {1.0: "yes", 0.0: "no"}.get(verdict, "undecided")
        assert met != "yes" or abs(change) <= 0.01
        assert scalars == needed if met == "yes" else np.isnan(needed)
    maps = [f for f in figures if isinstance(f, Heatmap)]
    assert len(maps) == min(6, data.sizes["setting"])
    np.testing.assert_array_equal(maps[0].values, data["loss_change_each"].isel(setting=0).values)
    priced, beside = (f for f in figures if isinstance(f, Scatter))
    assert priced.title == "Cost against storage: attention.swap, trained"
    assert set(beside.groups) == {"trained", "chance"}
    assert beside.y_name == "kl"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A variant of swept values, one of draws of them."""
    ks = {"matrices": ["QK"], "sweep": {"k": [1, 4]}}
    study = STUDY | {
        "variants": {
            "top": [{"edit": "spectrum.keep", **ks}],
            "random": {"edits": [{"edit": "spectrum.keep-random", **ks}], "draws": 2},
        },
        "analyses": [one for one in STUDY["analyses"] if one["use"] not in ("attention.band", "attention.lowrank")],
    }
    del study["against"], study["report"]
    host = host_of("models", "attention", "spectrum")
    return gausslens.run(study, store=Path(tmp_path_factory.mktemp("swept")), host=host, shown=False)


def test_every_swept_value_has_a_row(swept: Results) -> None:
    names = [f"{variant}, k {k}" for variant in ("top", "random") for k in (1, 4)]
    counts = next(f for f in roles(swept) if isinstance(f, Table) and f.title == "Families of heads")
    heads = swept["random", "attention.roles"]["heads"].sel(k=4).sum("layer").mean("draw")
    assert [row[0] for row in counts.rows] == names
    np.testing.assert_allclose(counts.rows[3][1:5], heads)
    explained = next(f for f in pooling(swept) if isinstance(f, Table))
    data = swept["top", "attention.pooling"]["explained"].sel(k=4, scoring="dot")
    assert list(dict.fromkeys(row[0] for row in explained.rows)) == names
    assert next(row[3] for row in explained.rows if row[:2] == ("top, k 4", "dot")) == pytest.approx(data.median())
    for table in (f for f in curves(swept) if isinstance(f, Table)):
        assert list(dict.fromkeys(row[0] for row in table.rows)) == names


def test_every_swept_value_has_its_cost(swept: Results) -> None:
    figures = swap(swept)
    enough, costs = (f for f in figures if isinstance(f, Table))
    data, of_draws = (swept[variant, "attention.swap"] for variant in ("top", "random"))
    assert list(dict.fromkeys(row[0] for row in enough.rows)) == ["top, k 1", "top, k 4"]
    np.testing.assert_allclose([row[2] for row in costs.rows], data["loss_change"].sel(k=1))
    assert costs.columns[-3:] == ("kl, top, k 4", "kl, random, k 1", "kl, random, k 4")
    np.testing.assert_allclose([row[-1] for row in costs.rows], of_draws["kl"].sel(k=4).mean("draw"))
    assert costs.caption.endswith(" Means over draws.")
    assert [s.variant for s in costs.sources][-2:] == ["top", "random"]
    priced = next(f for f in figures if f.title == "Cost against storage: attention.swap, top")
    assert priced.caption.endswith(" Means over swept values of k.")


def test_a_swept_value_may_be_called_as_an_axis_is() -> None:
    dims = ("rank", "layer", "head")
    data = xr.Dataset({"entropy": (dims, np.ones((2, 1, 1))), "scalars": (("rank", "keys"), [[1.0], [2.0]])})
    low = Result("low", "attention.masks", data.assign_coords(rank=[3, 5]), swept=("rank",))
    assert [(name, float(one["scalars"].sum())) for name, one in low.points()] == [
        ("low, rank 3", 1.0),
        ("low, rank 5", 2.0),
    ]
    assert pooled_over(low) == " Means over swept values of rank."
    assert pooled_over(Result("low", "attention.masks", data.isel(rank=0))) == ""


def test_the_page_shows_them(results: Results) -> None:
    page = (Path(results.path) / "report.html").read_text(encoding="utf-8")
    for words in ("Families of heads", "What the model loses", "What is enough: low rank", "Soft heads and hard heads"):
        assert words in page
