"""Verdicts over a run: which statistics are selected, which cells are called, and what is said of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from gausslens.runs.compare import against
from gausslens.runs.plan_comparisons import rung_of
from gausslens.verdicts import explanations, sentences, statistics


def result(rng, names, shift=0.0, shape=(3, 4), cells=None):
    values = {}
    for name in names:
        x = rng.normal(size=shape)
        x[cells or ...] += shift
        values[name] = (("layer", "head"), x, {"long_name": f"the {name}", "units": "nat"})
    return xr.Dataset(values, coords={"layer": range(shape[0]), "head": range(shape[1])})


def run(seed, departing=(), variables=20, draws=8, shift=30.0):
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(variables)]
    model = result(rng, names)
    for name in departing:
        model[name][1, 2] += shift
    null = [result(rng, names) for _ in range(draws)]
    return {("trained", "label", "chance"): against(model, null)}


def test_statistics_are_selected_at_five_per_cent():
    """Of runs in which nothing departs 5 % select anything; 3 standard errors."""
    any_selected = [any(s.selected for s in statistics(run(seed))) for seed in range(100)]
    assert np.mean(any_selected) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_planted_departures_are_selected_and_called_where_they_are():
    found = statistics(run(0, ["v3", "v7"], draws=19))
    assert {s.variable for s in found if s.selected} == {"v3", "v7"}
    one = next(s for s in found if s.variable == "v3")
    assert np.argwhere(one.called).tolist() == [[1, 2]]
    assert one.furthest() == (1, 2)
    assert one.place((1, 2)) == {"layer": 1, "head": 2}
    assert not any(s.called.any() for s in found if not s.selected)


def test_a_statistic_is_one_short_line():
    """A list of them in a notebook is read at a glance: no dataset stands in it."""
    found = statistics(run(0, ["v3"], draws=19))
    lines = {one.variable: repr(one) for one in found}
    assert all("\n" not in line and len(line) < 160 for line in lines.values())
    one = next(s for s in found if s.variable == "v3")
    effect = one.column("effect")[1, 2]
    assert lines["v3"] == (
        f"<Statistic v3 of label, trained against chance: departs, q = {one.q:.3g}, 1 of 12 cells called, "
        f"largest effect {effect:+.3g} at layer 1, head 2>"
    )
    assert "does not depart, q = " in lines["v0"]
    kept = {name: dataset.map(np.zeros_like) for name, dataset in run(0, variables=1).items()}
    assert repr(statistics(kept)[0]) == "<Statistic v0 of label, trained against chance: not judged>"


def test_variants_are_families_of_their_own():
    """A held-out twin beside a trained model that departs everywhere is not called the more for it."""
    everywhere = [f"v{i}" for i in range(20)]
    selected = []
    for seed in range(60):
        trained = run(seed, everywhere)[("trained", "label", "chance")]
        twin = run(seed + 1000)[("trained", "label", "chance")]
        found = statistics({("trained", "label", "chance"): trained, ("heldout", "label", "chance"): twin})
        assert all(s.selected for s in found if s.variant == "trained")
        selected.append(any(s.selected for s in found if s.variant == "heldout"))
    assert np.mean(selected) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)


def test_layers_that_a_sweep_leaves_alone_count_once():
    rng = np.random.default_rng(5)
    model, null = result(rng, ["v"]), [result(rng, ["v"]) for _ in range(8)]
    swept = xr.concat([against(model, null)] * 5, dim=xr.DataArray([0.5, 1, 2, 4, 8], dims="alpha", name="alpha"))
    one, five = statistics({("t", "l", "n"): against(model, null)})[0], statistics({("t", "l", "n"): swept})[0]
    assert (five.tests, five.p, five.q) == (one.tests, one.p, one.q)
    assert five.called.shape == (5, *one.called.shape)


def test_points_of_a_sweep_at_the_least_p_that_draws_allow_count_each():
    """Fifteen of twenty steps lie far off, at one p: so few draws allow no smaller one."""
    rng = np.random.default_rng(6)
    null = [result(rng, ["v"], shape=(1, 4)) for _ in range(8)]
    steps = xr.DataArray(range(20), dims="step", name="step")
    points = [against(result(rng, ["v"], shift=50.0 * (step >= 5), shape=(1, 4)), null) for step in range(20)]
    p = np.array([float(point["v_p_variable"]) for point in points])
    assert len(set(p[5:])) < 5
    (one,) = statistics({("t", "l", "n"): xr.concat(points, dim=steps)})
    assert one.p == pytest.approx(min(np.sort(p) * 20 / np.arange(1, 21)))
    assert one.p <= 20 / 15 * p[5:].max()


def test_the_sentence_says_what_was_found():
    comparisons = run(0, ["v3", "v7"])
    (said,) = sentences(statistics(comparisons), {})
    assert said.startswith("Of 20 statistics 2 depart from chance (8 draws). The largest effect: the v")
    assert "at layer 1, head 2 (in label; chance: -" in said
    value = float(comparisons["trained", "label", "chance"]["v3"][1, 2])
    other = float(comparisons["trained", "label", "chance"]["v7"][1, 2])
    assert f"{value:.3g} nat" in said or f"{other:.3g} nat" in said


def test_the_sentence_is_honest_where_nothing_departs():
    (said,) = sentences(statistics(run(1)), {"chance": "before"})
    assert said.startswith("Of 20 statistics none departs from the model before training (chance, 8 draws)")
    (said,) = sentences(statistics(run(1, draws=3)), {})
    assert said == "Nothing can be said: 3 draws of chance tell no probability, 5 or more do."
    constant = xr.Dataset({"v": (("layer",), [1.0, 2.0])})
    (said,) = sentences(statistics({("t", "l", "chance"): against(constant, [constant] * 8)}), {})
    assert said == "Nothing departs from chance: it keeps every number that was compared with it."
    assert sentences([], {}) == []


def test_several_variants_are_named():
    twice = {("a", "label", "chance"): run(0, ["v3"])["trained", "label", "chance"]}
    twice["b", "label", "chance"] = run(1)["trained", "label", "chance"]
    first, second = sentences(statistics(twice), {})
    assert first.startswith("Of 20 statistics of a 1 departs from chance")
    assert second.startswith("Of 20 statistics of b none departs from chance")


def ladder(seed=0):
    """w is explained by scale, v by none, u is told from the second null by neither this nor that."""
    rng = np.random.default_rng(seed)

    def made(w, v, u, spread):
        values = {"w": w, "v": v, "u": u}
        spreads = {"w": 1.0, "v": 1.0, "u": spread}
        return xr.Dataset(
            {n: (("layer", "head"), rng.normal(x, spreads[n], size=(3, 4))) for n, x in values.items()},
            coords={"layer": range(3), "head": range(4)},
        )

    model = made(100, 300, 100, 1.0)
    nulls = {"fresh": [made(0, 0, 0, 1.0) for _ in range(8)], "sized": [made(100, 100, 90, 12.0) for _ in range(8)]}
    return {("trained", "label", n): against(model, draws) for n, draws in nulls.items()}


def test_explanations_and_their_sentence():
    found, rungs = statistics(ladder()), {"fresh": "before", "sized": "scale"}
    by_name = {name: each.rung for (_, _, name), each in explanations(found, rungs).items()}
    assert by_name == {"w": "scale", "v": "arrangement", "u": "undecided"}
    (said,) = sentences(found, rungs)
    assert said.startswith(
        "Of 3 statistics 3 depart from the model before training (fresh, 8 draws): 1 explained by scale, 1 beyond "
        "every null, 1 undecided. The largest effect beyond scale: v, "
    )
    assert "(in label; twins with matrices of its size: " in said
    (said,) = sentences(found, {"fresh": "before", "sized": "spectrum"})
    assert (
        "1 explained by spectrum, 1 left to arrangement, 1 undecided. The largest effect beyond spectrum: v, " in said
    )


def test_the_sentence_gives_the_numbers_of_the_largest_effect_beyond_all_nulls():
    comparisons = ladder()
    (said,) = sentences(statistics(comparisons), {"fresh": "before", "sized": "scale"})
    first, last = (comparisons["trained", "label", n] for n in ("fresh", "sized"))
    cell = np.unravel_index(np.abs(last["v_effect"].values).argmax(), first["v"].shape)
    value, low, high = (
        float(d[n].values[cell]) for d, n in ((first, "v"), (last, "v_null_low"), (last, "v_null_high"))
    )
    assert f"v, {value:.3g} at layer {cell[0]}, head {cell[1]} (" in said
    assert f": {low:.3g} to {high:.3g})." in said


def test_the_largest_effect_beyond_the_last_null_is_the_one_beside_it():
    """``far`` is further from the first null, and the last gives most of it; of ``near`` it gives nothing."""
    rng = np.random.default_rng(1)

    def made(far, near, spread):
        cells = {"far": rng.normal(far, spread, (3, 4)), "near": rng.normal(near, spread, (3, 4))}
        return xr.Dataset({n: (("layer", "head"), v) for n, v in cells.items()})

    model = xr.Dataset(
        {n: (("layer", "head"), np.arange(12.0).reshape(3, 4) + x) for n, x in (("far", 900), ("near", 200))}
    )
    comparisons = {
        ("trained", "label", null): against(model, [made(far, 0, 1.0) for _ in range(8)])
        for null, far in (("fresh", 0), ("turned", 780))
    }
    (said,) = sentences(statistics(comparisons), {"fresh": "before", "turned": "spectrum"})
    first, last = (comparisons["trained", "label", null] for null in ("fresh", "turned"))
    assert float(abs(first["far_effect"]).max()) > float(abs(first["near_effect"]).max())
    assert float(abs(last["far_effect"]).max()) < float(abs(last["near_effect"]).max())
    assert "2 left to arrangement. The largest effect beyond spectrum: near, 211 at layer 2, head 3 (" in said


def test_the_largest_effect_is_of_all_cells_whatever_explains_the_others_of_its_statistic():
    """One cell of w is far beyond, the eleven others are explained by scale: it is the one that is told."""
    comparisons = ladder()
    rng = np.random.default_rng(3)
    w = rng.normal(100, 0.1, size=(3, 4))
    w[2, 1] = 900.0
    model = xr.Dataset({"w": (("layer", "head"), w)}, coords={"layer": range(3), "head": range(4)})
    for null, mean in (("fresh", 0), ("sized", 100)):
        draws = [model.assign(w=(("layer", "head"), rng.normal(mean, 1, size=(3, 4)))) for _ in range(8)]
        comparisons["trained", "label", null] = against(model, draws)
    rungs = {"fresh": "before", "sized": "scale"}
    (each,) = explanations(statistics(comparisons), rungs).values()
    assert each.rung == "scale"
    (said,) = sentences(statistics(comparisons), rungs)
    assert "1 explained by scale. The largest effect beyond scale: w, 900 at layer 2, head 1 (" in said


def test_a_word_of_the_ladder_is_a_claim_of_the_edit_and_no_name():
    """A null that is called spectrum, of one layer alone or of an edit that claims nothing, has not that word."""
    edit = SimpleNamespace(edit=SimpleNamespace(descriptor=SimpleNamespace(keeps="scale")), layers=None, heads=None)

    def word(name, call, prompts=None):
        return rung_of(
            SimpleNamespace(name=name, points=[SimpleNamespace(edits=[call])], prompts=prompts, draw_values=())
        )

    of_one_layer = SimpleNamespace(**vars(edit) | {"layers": (1,)})
    silent = SimpleNamespace(**vars(edit) | {"edit": SimpleNamespace(descriptor=SimpleNamespace(keeps=None))})
    assert word("spectrum", edit) == word("mine", edit) == "scale"
    assert word("mine", of_one_layer) == word("mine", silent) == "mine"
    assert word("spectrum", of_one_layer) == word("spectrum", silent) == "variant-spectrum"
    assert word("undecided", silent) == "variant-undecided"
    assert word("before", edit, prompts="others") == "variant-before"
    (said,) = sentences(statistics(ladder()), {"fresh": "before", "sized": "variant-spectrum"})
    assert "left to arrangement" not in said
    assert "(in label; variant-spectrum: " in said


def test_without_a_null_of_weights_nothing_is_left_to_arrangement():
    (said,) = sentences(statistics(ladder()), {})
    assert ": 1 explained by sized, 1 beyond every null, 1 undecided. " in said
    assert "arrangement" not in said


def test_what_is_beside_one_null_alone_is_counted_apart():
    comparisons = ladder()
    other = comparisons["trained", "label", "fresh"]
    comparisons["trained", "other", "fresh"] = other[[n for n in other if n.startswith("v")]]
    comparisons["trained", "other", "fresh"].attrs = other.attrs
    (said,) = sentences(statistics(comparisons), {"fresh": "before", "sized": "scale"})
    assert "1 undecided, 1 compared with no other null. " in said


def test_where_the_nulls_explain_everything_it_says_so():
    comparisons = {key: data[[n for n in data if n.startswith("w")]] for key, data in ladder().items()}
    for data in comparisons.values():
        data.attrs["draws"] = 8
    (said,) = sentences(statistics(comparisons), {"fresh": "before", "sized": "scale"})
    assert said.endswith("(fresh, 8 draws): 1 explained by scale. No number needs more than these nulls.")


def test_a_strangers_null_has_its_own_name():
    each = explanations(statistics(ladder()), {"fresh": "before"})["trained", "label", "w"]
    assert each.rung == "sized"


@pytest.mark.parametrize("nulls", [("fresh",), ()])
def test_one_null_is_no_ladder(nulls):
    comparisons = {key: value for key, value in ladder().items() if key[2] in nulls}
    assert explanations(statistics(comparisons), {}) == {}
