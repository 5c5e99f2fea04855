"""Reading a store as users do: by variant and label, stacked, as tables, as a tree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from store.stored import META, every_type, key, manifest, null_of, small, step

import gausslens
from gausslens import GausslensError
from gausslens.store import Store, read_parts
from gausslens.store.layout import part_path


@pytest.fixture
def results(filled_once: Path) -> gausslens.Results:
    return gausslens.open(filled_once)


def test_one_result_is_as_it_was_stored(results: gausslens.Results) -> None:
    xr.testing.assert_identical(results["trained", "score"].load(), small(0))


def test_what_a_reader_changes_is_his_alone(results: gausslens.Results) -> None:
    first = results["trained", "score"]
    first["score"].values[...] = -1
    first.attrs["note"] = "mine"
    xr.testing.assert_identical(results["trained", "score"].load(), small(0))


def test_what_is_held_of_results_is_bounded_and_of_the_file_that_is_there(store: Store) -> None:
    recent = read_parts.Recent(most=3 * small(0).nbytes)
    for number in range(20):
        recent.put((number,), small(number))
    assert 1 <= len(recent.held) <= 3
    assert recent.get((0,)) is None
    held = recent.get((19,))
    assert held is not None
    xr.testing.assert_identical(held, small(19))
    # Another file under the same name, of the same size and time, is read.
    store.commit("probe.score", key("one"), small(0), META)
    path = part_path(store.path, "probe.score", key("one"))
    before = read_parts.read_part(store.path, "probe.score", key("one"))
    state = path.stat()
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    xr.testing.assert_identical(before.load(), small(0))
    with pytest.raises(GausslensError):
        read_parts.read_part(store.path, "probe.score", key("one"))


def test_draws_are_stacked(results: gausslens.Results) -> None:
    found = results["chance", "score"]
    assert found["score"].dims == ("draw", "layer", "head")
    assert found["mass"].dims == ("draw",)
    assert found["name"].dims == ("head",)  # equal in all draws: not stacked
    for draw in range(3):
        alone = found.sel(draw=draw).drop_vars("draw")
        xr.testing.assert_identical(alone.load(), small(10 + draw))


def test_draws_and_swept_values_are_leading_dimensions(results: gausslens.Results) -> None:
    found = results["dose", "score"]
    assert found["score"].dims == ("draw", "alpha", "layer", "head")
    assert found["alpha"].values.tolist() == [0.5, 2]
    for draw in range(3):
        for alpha in (0.5, 2):
            alone = found.sel(draw=draw, alpha=alpha).drop_vars(["draw", "alpha"])
            xr.testing.assert_identical(alone.load(), small(100 * draw + int(10 * alpha)))


def test_results_of_unlike_shapes_are_told_and_can_be_had_one_by_one(results: gausslens.Results) -> None:
    with pytest.raises(GausslensError) as caught:
        results["uneven", "score"]
    for word in ("'score'", "layer 3, head 4", "layer 4, head 4", "draw 0", "draw 1", ".draws()"):
        assert word in str(caught.value)
    each = results.draws("uneven", "score")
    assert [d.sizes["layer"] for d in each.values()] == [3, 4, 5]
    assert list(each)[1] == (("draw", 1),)


def test_equal_shapes_with_unlike_coordinates_are_not_stacked(store: Store) -> None:
    steps = [step("v", "x", str(i), draw=i) for i in range(2)]
    store.manifest("run", manifest("p", steps))
    for i in range(2):
        store.commit("probe.score", key(i), small(i).assign_coords(layer=[0, 1, 2 + i]), META)
    with pytest.raises(GausslensError, match="its coordinate 'layer' differs between draw 0 and draw 1"):
        gausslens.open(store.path)["v", "x"]


def test_a_swept_name_that_a_result_has_itself_is_told(store: Store) -> None:
    steps = [step("v", "x", str(i), sweep={"layer": i}) for i in range(2)]
    store.manifest("run", manifest("p", steps))
    for i in range(2):
        store.commit("probe.score", key(i), small(i), META)
    with pytest.raises(GausslensError, match="'layer' of its own"):
        gausslens.open(store.path)["v", "x"]


def test_a_grid_with_holes_is_told(store: Store) -> None:
    steps = [step("v", "x", f"{i}{a}", draw=i, sweep={"a": a}) for i in range(2) for a in ("p", [1, 2])]
    store.manifest("run", manifest("p", steps))
    for one in steps[:3]:
        store.commit("probe.score", one["key"], small(0), META)
    with pytest.raises(GausslensError, match=r"not finished at draw 1, a \[1, 2\]"):
        gausslens.open(store.path)["v", "x"]
    store.commit("probe.score", steps[3]["key"], small(0), META)
    assert gausslens.open(store.path)["v", "x"]["a"].values.tolist() == ["p", "[1, 2]"]


def test_large_arrays_are_stacked_without_being_read(store: Store) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 3, 300, 500))
    steps = [step("v", "x", f"{i}{a}", draw=i, sweep={"a": a}) for i in range(2) for a in range(3)]
    store.manifest("run", manifest("p", steps))
    for i in range(2):
        for a in range(3):
            store.commit("probe.score", key(f"{i}{a}"), xr.Dataset({"large": (("x", "y"), values[i, a])}), META)
    found = gausslens.open(store.path)["v", "x"]["large"]
    assert not isinstance(found.variable._data, np.ndarray)
    for index in (
        np.s_[1], np.s_[:, 2], np.s_[0, ::-1, 5:9], np.s_[[1, 0], :, [3, 4], 7], np.s_[:, [2, 2], ..., -1],
        np.s_[1:1], np.s_[..., ::7], np.s_[-1, -1, -1, -1],
    ):  # fmt: skip
        wanted = xr.DataArray(values, dims=found.dims)[index]
        assert np.array_equal(found[index].values, wanted.values)
    assert np.array_equal(found.values, values)


def test_one_plan_of_one_run_is_read(store: Store) -> None:
    days = [f"2026-01-0{i}T00:00:00+00:00" for i in (5, 1, 4, 2, 3)]  # the clock says nothing
    store.manifest("a", manifest("p1", [step("v", "x", "old"), step("v", "y", "only")], days[0]))
    store.manifest("a", manifest("p2", [step("v", "x", "new")], days[1]))
    store.manifest("b", manifest("p3", [step("v", "x", "other")], days[2]))
    for i, name in enumerate(("old", "new", "other", "only")):
        store.commit("probe.score", key(name), small(i), META)
    results = gausslens.open(store.path)
    assert results.runs == ("a", "b")
    assert results.name == "b"
    assert results["v", "x"]["mass"] == 2
    with pytest.raises(GausslensError, match=r"no result 'y'.*; it is in run a"):
        results["v", "y"]
    assert results.run("a")["v", "x"]["mass"] == 1
    assert ("v", "y") not in results.run("a")  # another plan of the run has it, perhaps of another model
    assert results.run("a", plan=key("p1")[:6])["v", "y"]["mass"] == 3
    assert results.run("a", plan=key("p1"))["v", "x"]["mass"] == 0
    assert results.run("a").notes() == [
        "other runs in this store: b (model none)",
        f"run a has results of other plans too: {key('p1')[:8]} (model none)",
    ]
    with pytest.raises(GausslensError, match=f"no plan that begins with 'zzz': {key('p2')[:8]}, {key('p1')[:8]}"):
        results.run("a", plan="zzz")
    # a plan that comes back after another is the newest again; the same plan twice in a row is one manifest
    first = store.manifest("a", manifest("p1", [step("v", "x", "old"), step("v", "y", "only")], days[3]))
    again = store.manifest("a", manifest("p1", [step("v", "x", "old"), step("v", "y", "only")], days[4]))
    assert first == again
    assert first.name == f"{key('p1')}.2.json"
    assert gausslens.open(store.path)["v", "x"]["mass"] == 0


def test_what_there_is(results: gausslens.Results) -> None:
    assert results.runs == ("first",)
    assert results.variants == ("trained", "chance", "uneven", "dose")
    assert results.labels == ("score",)
    assert set(results) == {*((v, "score") for v in results.variants), ("trained", "score.against.chance")}
    assert ("trained", "score") in results
    assert ("trained", "scores") not in results
    assert len(results) == 5
    assert results.manifest().resolved == {"gausslens": 1}
    facts = results.facts("chance", "score")
    assert [f["key"] for f in facts] == [key(f"c{i}") for i in range(3)]
    assert facts[0]["provenance"]["name"] == "naïve"
    shown = repr(results)
    assert "run first: 14 of 14 steps finished" in shown
    assert "  chance: score" in shown


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (("traind", "score"), "no variant 'traind': did you mean trained?"),
        (("trained", "scor"), "no result 'scor': did you mean score?"),
        ("trained", "named by variant and label"),
    ],
)
def test_what_is_misspelt_is_told(results: gausslens.Results, name: tuple[str, str], words: str) -> None:
    with pytest.raises(GausslensError, match=words):
        results[name]
    with pytest.raises(KeyError):
        results[name]


def test_a_run_that_is_misspelt_is_told(results: gausslens.Results) -> None:
    with pytest.raises(GausslensError, match=r"no run 'firts': did you mean first?"):
        results.run("firts")


def test_the_table_has_a_row_for_each_step(results: gausslens.Results) -> None:
    table = results.table()
    assert list(table.columns) == ["run", "variant", "draw", "alpha", "label", "analysis", "key", "finished", "created"]
    assert len(table) == 14
    assert table["finished"].all()
    dose = table[table["variant"] == "dose"]
    assert sorted(zip(dose["draw"], dose["alpha"], strict=True)) == [(d, a) for d in range(3) for a in (0.5, 2)]
    assert table["created"].iloc[0] == pd.Timestamp(META["created"])


def test_a_frame_has_a_row_for_each_cell_and_the_null_beside(results: gausslens.Results) -> None:
    frame = results.frame("trained", "score")
    score = frame[frame["variable"] == "score"]
    assert list(score["value"]) == small(0)["score"].values.ravel().tolist()
    assert list(score["layer"]) == [0] * 4 + [1] * 4 + [2] * 4
    assert "".join(score["name"]) == "abcd" * 3
    nulls = score[["null_mean", "null_sd", "z", "p", "p_empirical", "q"]]
    assert nulls.drop_duplicates().values.tolist() == [[1.0, 2.0, 3.0, 0.1, 0.2, 0.3]]
    mass = frame[frame["variable"] == "mass"]
    assert mass["value"].tolist() == [0.0]
    assert mass["z"].isna().all()
    assert frame["layer"].dtype == "Int64"
    assert "z" not in results.frame("chance", "score")
    assert len(results.frame("chance", "score", variables=["mass"])) == 3
    with pytest.raises(GausslensError, match=r"no variable 'scor': did you mean score?"):
        results.frame("trained", "score", variables=["scor"])


def test_a_frame_of_unlike_shapes_is_a_table_all_the_same(results: gausslens.Results) -> None:
    frame = results.frame("uneven", "score", variables=["score"])
    assert frame.groupby("draw").size().tolist() == [12, 16, 20]


def test_a_frame_of_too_many_rows_is_refused(store: Store) -> None:
    store.manifest("run", manifest("p", [step("v", "x", "k")]))
    store.commit("probe.score", key("k"), xr.Dataset({"large": ("x", np.zeros(20_000_001, "i1"))}), META)
    with pytest.raises(GausslensError, match="20,000,001 of them of 'large'"):
        gausslens.open(store.path).frame("v", "x")


def test_several_nulls(store: Store) -> None:
    steps = [step("v", "x", "k")] + [step("v", f"x.against.{n}", f"a{n}", against=n) for n in ("one", "two")]
    store.manifest("run", manifest("p", steps))
    store.commit("probe.score", key("k"), small(0), META)
    for number, null in enumerate(("one", "two")):
        store.commit("probe.score", key(f"a{null}"), null_of(small(0)) + number, META)
    results = gausslens.open(store.path)
    assert results.nulls("v", "x") == ("one", "two")
    with pytest.raises(GausslensError, match="compared with one, two: say which"):
        results.against("v", "x")
    assert float(results.against("v", "x", "two")["score_z"][0, 0]) == 4
    frame = results.frame("v", "x", variables=["score"])
    assert frame[["one.z", "two.z"]].iloc[0].tolist() == [3, 4]
    assert results.frame("v", "x", null="two", variables=["score"])["z"].iloc[0] == 4
    with pytest.raises(GausslensError, match=r"not compared with 'tow': did you mean two?"):
        results.against("v", "x", "tow")


def test_what_is_compared_with_nothing_is_told(results: gausslens.Results) -> None:
    with pytest.raises(GausslensError, match="compared with no null"):
        results.against("chance", "score")
    assert float(results.against("trained", "score")["score_p"][0, 0]) == 0.1


def test_everything_is_a_tree(results: gausslens.Results) -> None:
    tree = results.tree()
    xr.testing.assert_identical(tree["first/trained/score"].to_dataset().load(), small(0))
    assert tree["first/dose/score"]["score"].dims == ("draw", "alpha", "layer", "head")
    assert [tree[f"first/uneven/score/{i}"].sizes["layer"] for i in range(3)] == [3, 4, 5]


def test_plots_need_no_second_library(results: gausslens.Results) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    assert results["trained", "score"]["score"].plot() is not None
    assert results["chance", "score"]["mass"].plot.hist() is not None
    mpl.pyplot.close("all")


def test_every_type_stacks(store: Store) -> None:
    store.manifest("run", manifest("p", [step("v", "x", str(i), draw=i) for i in range(2)]))
    for i in range(2):
        store.commit("probe.score", key(i), every_type(), META)
    found = gausslens.open(store.path)["v", "x"].load()
    assert found["eigenvalue"].dtype == np.complex128
    assert found["strange"].values.tolist() == [["a\0b", "x\ud800y"]] * 2
    assert found["nothing"].shape == (2, 0, 4)


@pytest.mark.parametrize(
    "values", [[1, 0, 3], [0, 0, 0], [1.5, 0, 3], [np.nan, 0, 3], ["1", "0", "3"], [True, False, True]]
)
@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "i2", "u1"])
def test_a_result_of_the_same_names_and_shapes_may_be_of_other_types(
    store: Store, kind: str, values: list[Any]
) -> None:
    """What is known of the layout of one is not taken for that of the other, also where numbers convert."""
    known = xr.Dataset({"value": ("at", np.arange(3).astype(kind), {"units": "1"})})
    other = xr.Dataset({"value": ("at", np.array(values), {"units": "1"})})
    for number, dataset in enumerate((known, known + 1, other, known)):
        store.commit("probe.score", key(number), dataset.assign_attrs(number=number), META)
    for number, dataset in enumerate((known, known + 1, other, known)):
        found = store.read("probe.score", key(number)).load()
        assert found["value"].dtype.kind == dataset["value"].dtype.kind.replace("U", "O")
        np.testing.assert_array_equal(found["value"].values, dataset["value"].values)


def test_a_draw_of_known_layout_is_read_from_the_bytes_of_its_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 opens none of its arrays then; where text or a byte differs it does, and says what is wrong."""
    made = []
    for number, last in enumerate("ddde"):
        one = every_type().drop_vars("strange")  # text beside its bytes is read by HDF5
        one["added"] = ("head", np.sqrt([2, 3, 5, 7]) + number)
        made.append(one.assign_coords(called=("head", ["a", "b", "c", last])))
        store.commit("probe.bytes", key(number), made[-1], META)
    damaged, values = part_path(store.path, "probe.bytes", key(2)), made[2]["added"].values
    damaged.chmod(0o644)
    assert damaged.read_bytes().count(values.tobytes()) == 1
    damaged.write_bytes(damaged.read_bytes().replace(values.tobytes(), (values + 1).tobytes()))
    opened: list[int] = []
    plain = read_parts.checked_arrays
    monkeypatch.setattr(read_parts, "checked_arrays", lambda *given: opened.append(1) or plain(*given))
    for number, times in ((0, 1), (1, 1), (2, 2), (3, 3)):
        if number == 2:
            with pytest.raises(GausslensError, match="crc32"):
                store.read("probe.bytes", key(number))
        else:
            xr.testing.assert_identical(store.read("probe.bytes", key(number)).load(), made[number])
        assert len(opened) == times


def test_a_damaged_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    store = Store(tmp_path / "s").create()
    store.manifest("good", manifest("p1", [step("v", "x", "k")]))
    damaged = store.manifest("bad", manifest("p2", [step("v", "x", "k")]))
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes().replace(b'"variant"', b'"varianT"'))
    with pytest.warns(UserWarning, match="a run is left out: .*digest does not match"):
        assert gausslens.open(store.path).runs == ("good",)


@pytest.fixture(scope="module")
def by_label(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[gausslens.Result]]:
    """The null first in the plan; variants with neither draws nor sweep, with both, and one that is not finished."""
    store = Store(tmp_path_factory.mktemp("by_label") / "store").create()
    steps = [step("chance", "score", f"c{draw}", draw=draw) for draw in range(3)]
    steps.append(step("trained", "score", "t"))
    for alpha in (0.5, 2):
        for name in ("near", "far"):
            steps.append(step("dose", "score", f"{alpha} {name}", sweep={"alpha": alpha, "name_of": name}))
            steps.append(step("mixed", "score", f"m{alpha} {name}", draw=int(alpha), sweep={"name_of": name}))
    steps += [step("late", "score", "late"), step("chance", "again", "c0", draw=0), step("trained", "again", "t")]
    made = {entry["ingredients"]["made"]: small(seed) for seed, entry in enumerate(steps)}
    del made["late"]
    others = {"analysis": "probe.other"}
    steps += [step("trained", "score.against.chance", "ta", against="chance"), step("trained", "other", "o", **others)]
    made["ta"] = null_of(small(3))
    store.manifest("run", manifest("p", steps))
    for name, dataset in made.items():
        store.commit("probe.score", key(name), dataset, META)
    store.commit("probe.other", key("o"), small(0), META)
    return gausslens.open(store.path).by_label("probe.score")


def _named(results: list[gausslens.Result]) -> dict[str, gausslens.Result]:
    return {result.variant: result for result in results}


def test_results_of_an_analysis_by_label_with_the_nulls_last(by_label: dict[str, list[gausslens.Result]]) -> None:
    assert {label: [r.variant for r in each] for label, each in by_label.items()} == {
        "score": ["trained", "dose", "mixed", "chance"],  # as planned but for the null; "late" is not finished
        "again": ["chance", "trained"],  # nothing is compared here: nothing is a null
    }
    assert all(r.label == label for label, each in by_label.items() for r in each)


def test_a_result_knows_its_nulls_and_whether_it_is_one(by_label: dict[str, list[gausslens.Result]]) -> None:
    assert {v: (r.nulls, r.is_null) for v, r in _named(by_label["score"]).items()} == {
        "trained": (("chance",), False),
        "dose": ((), False),
        "mixed": ((), False),
        "chance": ((), True),
    }
    assert not any(r.nulls or r.is_null for r in by_label["again"])


def test_a_result_knows_its_draws_and_swept_dimensions(by_label: dict[str, list[gausslens.Result]]) -> None:
    assert {v: (r.draws, r.swept) for v, r in _named(by_label["score"]).items()} == {
        "trained": (None, ()),
        "dose": (None, ("alpha", "name_of")),
        "mixed": (2, ("name_of",)),
        "chance": (3, ()),
    }
    assert _named(by_label["again"])["chance"].draws == 1  # one draw is a draw still
    for result in by_label["score"]:
        lead = (() if result.draws is None else ("draw",)) + result.swept
        assert result.data["score"].dims == (*lead, "layer", "head")


def test_the_points_of_a_result_are_its_swept_values_in_words(by_label: dict[str, list[gausslens.Result]]) -> None:
    found = _named(by_label["score"])
    dose = found["dose"]
    assert [words for words, _ in dose.points()] == [
        f"dose, alpha {alpha}, name_of {name}" for alpha in (0.5, 2.0) for name in ("near", "far")
    ]
    values = [data["score"].values for _, data in dose.points()]
    wanted = [dose.data["score"].sel(alpha=a, name_of=n).values for a in (0.5, 2) for n in ("near", "far")]
    np.testing.assert_array_equal(values, wanted)
    assert [(words, dict(data.sizes)) for words, data in found["mixed"].points()] == [
        (f"mixed, name_of {name}", {"draw": 2, "layer": 3, "head": 4}) for name in ("near", "far")
    ]
    for variant in ("trained", "chance"):  # nothing is swept: one point, all draws in it
        ((words, data),) = found[variant].points()
        assert words == variant
        xr.testing.assert_identical(data.load(), found[variant].data.load())
