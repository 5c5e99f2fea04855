"""What a notebook is given: a number of one's own beside its null, names to choose from, tables to look at."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens.maths.nulls import compare
from gausslens.terminal import html_table

RANDOM = np.random.default_rng(5)
DRAWS = RANDOM.normal(size=(8, 3, 4))
VALUE = RANDOM.normal(size=(3, 4)) + np.eye(3, 4) * 30


def test_a_number_of_ones_own_is_judged_as_those_of_a_run() -> None:
    found = gausslens.versus(VALUE, DRAWS)
    expected = compare(VALUE, DRAWS, (), (0, 1))
    np.testing.assert_array_equal(found["value"], VALUE)
    for column, values in (("z", expected.z), ("p", expected.p), ("q", expected.q), ("effect", expected.effect)):
        np.testing.assert_array_equal(found[f"value_{column}"], values)
    assert (found["value_z"].values[np.eye(3, 4, dtype=bool)] > 3).all()


def test_names_and_dimensions_stay_and_one_number_will_do() -> None:
    made = [xr.DataArray(draw, dims=("layer", "head"), name="score") for draw in (VALUE, *DRAWS)]
    found = gausslens.versus(made[0], made[1:], pooled=("head",))
    assert found["score_z"].dims == ("layer", "head")
    np.testing.assert_array_equal(found["score_p_empirical"], compare(VALUE, DRAWS, (1,), (0,)).p_empirical)
    alone = gausslens.versus(9.0, [0.1, -0.2, 0.3, 0.0, -0.1])
    assert float(alone["value_z"]) > 3


@pytest.mark.parametrize(
    ("value", "draws", "pooled", "said"),
    [
        (1.0, [2.0], (), "at least 2 draws, there is 1"),
        (1.0, [], (), "there are none"),
        (np.zeros(3), np.zeros((8, 4)), (), "a draw is not what the value is: .*3.* here"),
        ("a", ["b", "c"], (), "give real numbers"),
        (xr.DataArray(np.zeros(3), dims="head"), np.zeros((8, 3)), ("haed",), "did you mean head"),
    ],
)
def test_what_cannot_be_compared_is_told(value: object, draws: object, pooled: tuple[str, ...], said: str) -> None:
    with pytest.raises(gausslens.InputError, match=said):
        gausslens.versus(value, draws, pooled)


def test_results_models_and_weights_show_what_they_hold(tmp_path: Path) -> None:
    study = {
        "gausslens": 1,
        "name": "shown",
        "model": {"path": "builtin:tiny"},
        "variants": {"trained": []},
        "analyses": [{"use": "bilinear.spectrum"}],
        "report": False,
    }
    store = gausslens.run(study, store=tmp_path)
    assert store._ipython_key_completions_() == [("trained", "bilinear.spectrum")]
    assert "<td>bilinear.spectrum</td><td>1 of 1</td>" in store._repr_html_()
    model = gausslens.load("builtin:tiny")
    assert "resid_post" in model._repr_html_()
    assert "144,064" in model._repr_html_()
    weights = model.weights(1)
    assert "W_Q" in weights._ipython_key_completions_()
    assert repr(weights).startswith("<layer 1 of builtin:tiny: ")


def test_names_are_no_markup() -> None:
    assert "<b>" not in html_table("<b>", [("<b>", 1)], ("<b>", "n"))


def test_twins_are_those_of_a_run(tmp_path: Path) -> None:
    """Draw by draw what `against:` of a run has: the same edits, seeds and tensors."""
    study = {
        "gausslens": 1,
        "name": "drawn",
        "model": {"path": "builtin:tiny"},
        "seed": 7,
        "variants": {"turned": {"edits": [{"edit": "reinit.rotate"}], "draws": 2}},
        "analyses": [{"use": "bilinear.spectrum"}],
        "report": False,
    }
    out = gausslens.edit(study, "turned", tmp_path / "twin", draw=1)
    model = gausslens.load("builtin:tiny")
    first, second = model.twins("reinit.rotate", draws=2, seed=7)
    written = gausslens.load(out).weights(1)
    np.testing.assert_array_equal(second.weights(1).W_Q, written.W_Q)
    assert not np.array_equal(first.weights(1).W_Q, second.weights(1).W_Q)
    assert not np.array_equal(model.weights(1).W_Q, second.weights(1).W_Q)
    assert repr(second).startswith("<draw 1 of reinit.rotate of builtin:tiny: ")
    text, changed = "abcabc", {"edit": "spectrum.drop", "k": 1, "layers": [0]}
    at = [each.run(text, "pattern").pattern.values for each in (model, second, model.edited(changed))]
    assert not any(np.allclose(at[0], other) for other in at[1:])
    np.testing.assert_array_equal(at[0], model.run(text, "pattern").pattern.values)


@pytest.mark.parametrize(
    ("edits", "draws", "said"),
    [
        ("reinit.rotat", 2, "did you mean reinit.rotate"),
        ("spectrum.drop", 2, "no edit of this variant is random"),
        ({"edit": "spectrum.drop", "sweep": {"k": [1, 2]}}, None, "name one value each"),
        ({"edit": "reinit.rotate", "layers": [9]}, 2, "9"),
    ],
)
def test_edits_that_cannot_be_made_are_told_before_anything_is_drawn(edits: object, draws: object, said: str) -> None:
    model = gausslens.load("builtin:tiny")
    with pytest.raises(gausslens.GausslensError, match=said):
        model.twins(edits, draws) if draws else model.edited(edits)  # type: ignore[arg-type]
    twin = next(model.twins("reinit.rotate"))
    with pytest.raises(gausslens.InputError, match="put all edits into one list"):
        twin.edited("spectrum.drop")


class Gains:
    """An analysis as a cell of a notebook has it."""

    def __init__(self, _parameters: object, _context: object) -> None:
        pass

    def layer(self, weights: gausslens.LayerWeights, layer: int) -> xr.Dataset:
        size = float(weights.W_Q.norm())
        return xr.Dataset({"size": ((), size, {"long_name": "size of W_Q", "units": "1"})})


class Plugin:
    @gausslens.hookimpl
    def analyses(self) -> list[gausslens.Analysis]:
        return [
            gausslens.Analysis(
                name="mine.gains",
                version=1,
                shape="weights",
                summary="how large W_Q is",
                parameters="gausslens.parameters:NoParameters",
                analysis="__main__:Gains",
            )
        ]


def test_a_plugin_of_a_notebook_is_taken_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = {"name": "mine", "model": {"path": "builtin:tiny"}, "analyses": [{"use": "mine.gains"}]}
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "Gains", Gains, raising=False)
    first = gausslens.run(study, store=tmp_path / "first", plugins={"mine": Plugin()}, shown=False)

    class Doubled(Gains):
        def layer(self, weights: gausslens.LayerWeights, layer: int) -> xr.Dataset:
            return 2 * super().layer(weights, layer).assign_attrs()

    monkeypatch.setattr(main, "Gains", Doubled)
    again = gausslens.run(study, store=tmp_path / "again", plugins={"mine": Plugin()}, shown=False)
    sizes = [store["trained", "mine.gains"]["size"].values for store in (first, again)]
    np.testing.assert_array_equal(2 * sizes[0], sizes[1])
    with pytest.raises(gausslens.InputError, match="leave out host=, workers= and scheduler="):
        gausslens.run(study, plugins={"mine": Plugin()}, workers=2)
    with pytest.raises(gausslens.InputError, match="set aside: plugin mine"):
        gausslens.run(study, plugins={"mine": type("Wrong", (Plugin,), {"analyses": gausslens.hookimpl(lambda _: 3)})})


def test_a_figure_is_found_by_a_word_of_its_title(tmp_path: Path) -> None:
    study = {"name": "drawn", "model": {"path": "builtin:tiny"}, "analyses": [{"use": "bilinear.spectrum"}]}
    figures = gausslens.draw(gausslens.run(study, store=tmp_path, shown=False))
    assert figures["distance"] is figures[figures._ipython_key_completions_().index(figures["distance"].figure.title)]
    assert "<td>Heatmap</td>" in figures._repr_html_()
    with pytest.raises(gausslens.InputError, match="figures have 'trained' in their titles: "):
        figures["trained"]
    with pytest.raises(gausslens.InputError, match="no figure has 'entropy' in its title"):
        figures["entropy"]
