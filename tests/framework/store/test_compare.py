"""Values of two runs side by side: paired by coordinates, with errors where they are stored."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xarray as xr
from store.stored import META, key, manifest, small, step
from store.test_commands import said

import gausslens
from gausslens import GausslensError
from gausslens.maths.resampling import delete_group_error
from gausslens.store import Store


def runs(store: Store, one: xr.Dataset, other: xr.Dataset, **more: Any) -> gausslens.Results:
    """Two runs of one label; ``more`` are other labels with a dataset for each run."""
    for run, datasets in (("one", {"x": one}), ("two", {"x": other})):
        place = ("one", "two").index(run)
        datasets |= {label: pair[place] for label, pair in more.items()}
        store.manifest(run, manifest(run, [step("v", label, f"{run}{label}") for label in datasets]))
        for label, dataset in datasets.items():
            if dataset is not None:
                store.commit("probe.score", key(f"{run}{label}"), dataset, META)
    return gausslens.open(store.path)


def over_layers(values: list[float], layers: list[Any], errors: list[float] | None = None) -> xr.Dataset:
    arrays = {"power": ("layer", np.array(values))}
    if errors is not None:
        arrays["power_se"] = ("layer", np.array(errors))
    return xr.Dataset(arrays, {"layer": np.array(layers)})


def test_cells_are_paired_by_their_coordinates_not_by_their_place(store: Store) -> None:
    results = runs(store, over_layers([1, 2, 3], [0, 1, 2]), over_layers([20, 30, 40], [1, 2, 3]))
    found = results.compare("one", "two", "x")
    assert list(found.columns) == ["variant", "variable", "layer", "one.value", "two.value", "difference"]
    assert found.drop(columns=["variant", "variable"]).fillna(-1).values.tolist() == [
        [0, 1, -1, -1],
        [1, 2, 20, 18],
        [2, 3, 30, 27],
        [3, -1, 40, -1],
    ]
    assert found.attrs["left_out"] == []
    back = results.compare("two", "one", "x")
    assert back["difference"].fillna(0).tolist() == [0, -18, -27, 0]


def test_the_error_of_a_difference_is_that_of_independent_errors(store: Store) -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.normal(size=5).tolist() for _ in range(2))
    results = runs(store, over_layers(one, [*range(5)], [0.3] * 5), over_layers(other, [*range(5)], [0.4] * 5))
    found = results.compare("one", "two", "x")
    assert list(found.columns[3:]) == [
        "one.value", "two.value", "one.se", "two.se", "difference", "difference_se",
    ]  # fmt: skip
    np.testing.assert_allclose(found["difference"], np.subtract(other, one))
    np.testing.assert_allclose(found["difference_se"], 0.5)
    assert set(found["variable"]) == {"power"}  # an error is a column, no row
    assert set(results.compare("one", "two", "x", variables="power_se")["one.value"]) == {0.3}


@pytest.mark.parametrize("other_prompts", ["p", "q"])
def test_runs_on_the_same_prompts_lose_the_same_groups_together(store: Store, other_prompts: str) -> None:
    """What prompts do to both drops out: here all but a hundredth. Of other prompts errors add in quadrature."""
    rng = np.random.default_rng(1)
    shared = rng.normal(size=(10, 3))
    sides = []
    for prompts, own in (("p", shared), (other_prompts, shared + 0.01 * rng.normal(size=(10, 3)))):
        made = over_layers([1, 2, 3], [0, 1, 2], delete_group_error(own).tolist())
        made["power_without"] = (("left_out", "layer"), own, {"of": "power", "prompts": prompts})
        made["power_se"].attrs["of"] = "power"
        sides.append(made)
    found = runs(store, *sides).compare("one", "two", "x")["difference_se"]
    one, other = (side["power_without"].values for side in sides)
    expected = (
        delete_group_error(other - one)
        if other_prompts == "p"
        else np.hypot(delete_group_error(one), delete_group_error(other))
    )
    np.testing.assert_allclose(found, expected)
    assert (found < 0.1 * sides[0]["power_se"].values).all() == (other_prompts == "p")


def test_an_error_that_one_run_lacks_gives_none_of_the_difference(store: Store) -> None:
    results = runs(store, over_layers([1], [0]), over_layers([2], [0], [0.5]))
    found = results.compare("one", "two", "x")
    assert found[["two.se", "difference"]].values.tolist() == [[0.5, 1.0]]
    assert "difference_se" not in found
    assert found.attrs["left_out"] == ["v, x: power_se is not in one"]


def test_labels_beside_the_cells_are_one_column_where_they_agree(store: Store) -> None:
    def tokens(words: list[str]) -> xr.Dataset:
        return xr.Dataset({"loss": ("position", [1.0, 2.0])}, {"token": ("position", words), "layer": 3})

    found = runs(store, tokens(["a", "b"]), tokens(["a", "b"])).compare("one", "two", "x")
    assert found["token"].tolist() == ["a", "b"]
    found = runs(store, tokens(["a", "b"]), tokens(["a", "c"])).compare("one", "two", "x")
    store.manifest("two", manifest("again", [step("v", "x", "other")]))
    store.commit("probe.score", key("other"), tokens(["a", "c"]), META)
    found = gausslens.open(store.path).compare("one", "two", "x")
    assert found[["one.token", "two.token"]].values.tolist() == [["a", "a"], ["b", "c"]]
    assert found["layer"].tolist() == [3, 3]


def test_what_cannot_be_paired_is_named(store: Store) -> None:
    one = xr.Dataset({
        "shape": (("layer", "head"), np.zeros((2, 2))), "twice": ("key", [1.0, 2.0]), "word": ((), "a"),
        "mixed": ("at", [1.0]), "alone": ((), 1.0), "good": ((), 1 + 2j), "flag": ((), True),
        "count": ((), np.uint8(1)),
    }, {"key": [5, 5], "at": [1]})  # fmt: skip
    other = xr.Dataset({
        "shape": ("layer", np.zeros(2)), "twice": ("key", [1.0, 2.0]), "word": ((), "b"), "mixed": ("at", [1.0]),
        "good": ((), 3 + 2j), "flag": ((), False), "count": ((), np.uint8(0)),
    }, {"key": [5, 6], "at": ["1"]})  # fmt: skip
    results = runs(store, one, other)
    found = results.compare("one", "two", "x")
    assert found.set_index("variable")["difference"].to_dict() == {"good": 2, "flag": -1, "count": -1}
    assert found.attrs["left_out"] == [
        "v, x: shape is over layer, head and over layer",
        "v, x: twice has the same key twice in one",
        "v, x: word holds no numbers",
        "v, x: mixed has text along at in one and numbers in the other",
        "v, x: alone is not in two",
    ]
    with pytest.raises(GausslensError, match="x cannot be set side by side: v, x: shape is over"):
        results.compare("one", "two", "x", variables=["shape"])


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (("one", "one", "x"), "compared with itself"),
        (("one", "tow", "x"), "no run 'tow': did you mean two"),
        (("one", "two", "z"), "no variant has 'z' finished in both one and two"),
        (("one", "two", "late"), "no variant has 'late' finished in both"),
        (("one", "two", "x", "w"), "no variant 'w'"),
    ],
)
def test_what_is_not_there_is_told(store: Store, ask: tuple[str, ...], words: str) -> None:
    results = runs(store, small(0), small(1), late=(small(2), None))
    with pytest.raises(GausslensError, match=words):
        results.compare(*ask)


def test_diff_values(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    layers = [0, 1, 2]
    runs(
        store, over_layers([1, 2, 3], layers, [3, 3, 3]), over_layers([1, 9, 3], layers, [4, 4, 4]),
        y=(small(1), small(1)),
    )  # fmt: skip
    rows = json.loads(said(capsys, "diff", "--values", store.path, "one", "two", "x", "--json"))
    assert [(r["layer"], r["one.value"], r["two.value"], r["difference"], r["difference_se"]) for r in rows] == [
        (0, 1, 1, 0, 5), (1, 2, 9, 7, 5), (2, 3, 3, 0, 5),
    ]  # fmt: skip
    rows = json.loads(said(capsys, "diff", "--values", store.path, "one", "two", "--json"))
    by_name = {(r["label"], r["variable"]): r for r in rows}
    assert set(by_name) == {("x", "power"), ("y", "score"), ("y", "mass")}
    power = by_name["x", "power"]
    assert (power["cells"], power["equal"], power["most at"]) == (3, 2, "layer 1")
    assert (power["one.value"], power["two.value"], power["difference_se"]) == (2, 9, 5)
    assert by_name["y", "score"]["equal"] == 12
    text = said(capsys, "diff", "--values", store.path, "one", "two", "x")
    assert text.splitlines()[2].split() == ["v", "power", "1", "2", "9", "3", "4", "7", "5"]
    assert said(capsys, "diff", "--values", store.path, "one", "two", "x", "--csv").startswith(
        "variant,variable,layer,"
    )
    for argv, words in (
        (["x"], "only --values takes LABEL"), (["--csv"], "only --values takes --csv"),
        (["--variant", "v"], "only --values takes --variant"),
    ):  # fmt: skip
        assert words in said(capsys, "diff", store.path, "one", "two", *argv, code=2)
    assert "'one' is named twice" in said(capsys, "diff", "--values", store.path, "one", "one", code=2)
    assert "no result in common on 'w'" in said(
        capsys, "diff", "--values", store.path, "one", "two", "--variant", "w", code=2
    )
