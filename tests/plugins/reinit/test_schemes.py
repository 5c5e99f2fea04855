"""Each scheme on the tiny model: what it claims, what it draws, and what reinit.check makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import gausslens_reinit.edits
import gausslens_reinit.plugin as plugin
from gausslens import ModelError, Results
from gausslens.contract.errors import RunFailed
from gausslens.contract.reference import resolve
from gausslens.maths.heads import as_matrices
from gausslens.testing import TinyModel, TinyParameters, check_edit, check_weights
from gausslens_reinit.analyses.check import measured

Runs = Callable[..., Results]
SCHEMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "config": (plugin.CONFIG, {}),
    "gaussian": (plugin.GAUSSIAN, {}),
    "gaussian-given": (plugin.GAUSSIAN, {"variance": 0.5}),
    "xavier": (plugin.XAVIER, {}),
    "he": (plugin.HE, {}),
    "permute": (plugin.PERMUTE, {}),
    "rotate": (plugin.ROTATE, {}),
    "rotate-whole": (plugin.ROTATE, {"by": "matrix"}),
    "cascade": (plugin.CASCADE, {"depth": 2}),
    "identity": (plugin.IDENTITY, {}),
    "diagonal": (plugin.DIAGONAL, {}),
    "band": (plugin.BAND, {"width": 3}),
    "sparse": (plugin.SPARSE, {"density": 0.1}),
    "low-rank": (plugin.LOW_RANK, {"rank": 3}),
}
# What each keeps besides what all change; all others of these must have changed.
KEPT = {
    "gaussian": {"mean_change", "variance_change", "energy_change"},
    "permute": {"mean_change", "variance_change", "energy_change", "values_kept"},
    "rotate": {"energy_change", "head_spectrum_change"},
    "rotate-whole": {"energy_change", "spectrum_change"},
    **{name: {"energy_change"} for name in ("identity", "diagonal", "band", "sparse", "low-rank")},
}
LOOKED_AT = (
    *("mean_change", "variance_change", "energy_change", "values_kept"),
    *("spectrum_change", "head_spectrum_change"),
)


def parameters(edit: Any, given: dict[str, Any]) -> Any:
    return resolve(edit.parameters).model_validate(given)


@pytest.fixture
def model() -> TinyModel:
    """One planted head, so that heads differ in size."""
    return TinyModel(TinyParameters(d_model=32, d_head=8, planted=[(0, 1, 5.0), (1, 1, 5.0)]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_as_the_host_applies_it(scheme: str, model: TinyModel) -> None:
    edit, given = SCHEMES[scheme]
    made = check_edit(edit, parameters(edit, given), model=model)
    assert set(made[0]) == {"W_Q", "W_K", "W_V", "W_O"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_keeps_exactly_what_it_claims(scheme: str, model: TinyModel, twin_of: Any) -> None:
    twin = twin_of(model, SCHEMES[scheme])
    found = measured("W_Q", model.tensor(0, "W_Q"), twin.weights(0).W_Q)
    same = {n for n in LOOKED_AT if (found[n] == 1 if n == "values_kept" else abs(found[n]) < 1e-6)}
    assert same == KEPT.get(scheme, set())
    if scheme != "identity":
        assert abs(found["correlation"]) < 4.5 / np.sqrt(model.tensor(0, "W_Q").numel())
    # A band of width 3 in a square of 32 has 32 + 2 (31 + 30 + 29) places.
    zeros = {"sparse": 0.9, "band": 1 - 212 / 32**2, "diagonal": 1 - 1 / 32, "identity": 1 - 1 / 32}
    assert found["zeros"] == pytest.approx(zeros.get(scheme, 0.0), abs=1e-3)
    if scheme != "sparse":
        assert found["matrix_rank"] == {"low-rank": 3}.get(scheme, 32)


@pytest.mark.parametrize("by", ["matrix", "head"])
def test_an_identity_of_a_value_is_that_exactly(by: str, twin_of: Any) -> None:
    model = TinyModel(TinyParameters())
    twin = twin_of(model, (plugin.IDENTITY, {"value": 1.0, "by": by}))
    for name in ("W_Q", "W_K", "W_O"):
        for matrix in as_matrices(name, twin.weights(1)[name], by):
            assert torch.equal(matrix, torch.eye(*matrix.shape, dtype=matrix.dtype))


def test_an_identity_without_a_value_has_the_key_of_before_there_was_one() -> None:
    assert "value" not in parameters(plugin.IDENTITY, {}).keyed()
    assert "value" not in parameters(plugin.IDENTITY, {}).canonical()
    assert parameters(plugin.IDENTITY, {"value": 1.0}).keyed()["value"] == 1.0


@pytest.mark.parametrize(
    ("edit", "given", "variance"),
    [
        (plugin.XAVIER, {}, 2 / (64 + 64)),
        (plugin.XAVIER, {"gain": 2.0}, 8 / (64 + 64)),
        (plugin.HE, {}, 2 / 64),
        (plugin.GAUSSIAN, {"variance": 0.3}, 0.3),
    ],
)
def test_independent_entries_have_the_law_that_is_asked_for(
    edit: Any, given: dict[str, Any], variance: float, twin_of: Any
) -> None:
    model = TinyModel(TinyParameters(d_model=64, d_head=16))
    drawn = twin_of(model, (edit, given)).weights(0).W_Q.double().flatten().numpy()
    assert kstest(drawn / np.sqrt(variance), "norm").pvalue > 0.001


def test_fans_are_those_of_the_whole_matrix(twin_of: Any) -> None:
    """Key heads are fewer: W_K reads 64 and writes 32; W_O reads 64 and writes 64."""
    model = TinyModel(TinyParameters(d_model=64, d_head=16, heads=4, kv_heads=2))
    twin = twin_of(model, (plugin.XAVIER, {"distribution": "uniform"}))
    for name, variance in (("W_K", 2 / 96), ("W_O", 2 / 128)):
        drawn = twin.weights(0)[name].double().flatten().numpy()
        edge = np.sqrt(3 * variance)
        assert kstest(drawn, "uniform", (-edge, 2 * edge)).pvalue > 0.001


@pytest.mark.parametrize("scheme", ["config", "gaussian", "permute", "rotate"])
@pytest.mark.parametrize("start", ["top", "bottom"])
def test_a_cascade_draws_so_many_layers_from_its_end(scheme: str, start: str, twin_of: Any) -> None:
    model = TinyModel(TinyParameters(layers=3))
    for depth in range(5):
        twin = twin_of(model, (plugin.CASCADE, {"scheme": scheme, "start": start, "depth": depth}))
        drawn = [n for n in range(3) if twin.overlay(n)]
        assert drawn == (list(range(3))[:depth] if start == "bottom" else list(range(3))[max(0, 3 - depth) :])


def test_a_series_is_independent_of_another_and_the_same_each_time(model: TinyModel, twin_of: Any) -> None:
    W = [twin_of(model, (plugin.CONFIG, {"series": s})).weights(0).W_Q.double().flatten() for s in (0, 1, 1)]
    assert torch.equal(W[1], W[2])
    assert abs(float(torch.corrcoef(torch.stack(W[:2]))[0, 1])) < 4 / np.sqrt(len(W[0]))


def test_a_draw_that_breaks_its_claim_is_an_error(
    model: TinyModel, twin_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gausslens_reinit.edits.noise, "shuffled", lambda tensor, generator: tensor * 1.01)
    with pytest.raises(ModelError, match="layer 0, W_Q: the draw does not keep the values that it claims to keep"):
        twin_of(model, (plugin.PERMUTE, {})).overlay(0)


def test_a_random_edit_that_changes_nothing_is_an_error(
    model: TinyModel, twin_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gausslens_reinit.edits.noise, "rotated", lambda matrices, generator: matrices)
    with pytest.raises(Exception, match="W_Q: the edit is random and left the tensor bit-equal"):
        twin_of(model, (plugin.ROTATE, {})).overlay(0)


def test_the_check_of_the_model_itself_finds_nothing_changed() -> None:
    result = check_weights(plugin.CHECK)
    known = ("W_Q", "W_K", "W_V", "W_O")
    for name in ("moved", "mean_change", "spectrum_change", "head_spectrum_change", "energy_change"):
        assert (result[name].sel(tensor=list(known)) == 0).all()
    assert (result["values_kept"].sel(tensor=list(known)) == 1).all()
    assert result["moved"].sel(tensor="W_in").isnull().all()


def test_the_check_looks_at_every_draw_and_at_what_an_edit_before_left(gausslens_run: Runs) -> None:
    store = gausslens_run(
        {
            "variants": {
                "noise": {"edits": [{"edit": "reinit.gaussian"}], "draws": 3},
                "turned": [{"edit": "reinit.rotate", "matrices": ["W_Q"]}],
            },
            "analyses": [{"use": "reinit.check", "with": {"matrices": ["W_Q", "W_O"]}}],
            "report": True,
        },
        "reinit",
    )
    noise = store["noise", "reinit.check"]
    assert noise.sizes["draw"] == 3
    assert float(abs(noise["variance_change"]).max()) < 1e-6
    assert float(noise["moved"].min()) == 1.0
    turned = store["turned", "reinit.check"]
    assert float(turned["head_spectrum_change"].max()) < 1e-6
    assert (turned["moved"].sel(tensor="W_O") == 0).all()


def test_claims_that_do_not_hold_fail_the_step_and_name_the_matrix(gausslens_run: Runs) -> None:
    study = {
        "variants": {"noise": [{"edit": "reinit.gaussian"}]},
        "analyses": [{"use": "reinit.check", "with": {"claims": ["mean", "variance", "values"]}}],
    }
    with pytest.raises(RunFailed, match=r"layer 0.*W_Q does not keep its values"):
        gausslens_run(study, "reinit")
