"""Random re-initialisation: each scheme keeps exactly what it claims, and changes the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.stats import kstest

import gausslens_reinit.plugin
from gausslens import Generators, LayerWeights
from gausslens.maths.heads import BIAS_OF
from gausslens.testing import TinyModel, TinyParameters, check_edit, check_references
from gausslens_reinit.edits import from_config, gaussian, permute
from gausslens_reinit.parameters import ConfigParameters, GaussianParameters, ReinitParameters, touched
from gausslens_reinit.plugin import CONFIG, GAUSSIAN, PERMUTE


class Biased(TinyModel):
    """The tiny model with a trained query bias, a key bias of zeros, and a norm whose gain was trained."""

    def names(self, layer: int | None) -> tuple[str, ...]:
        return super().names(layer) if layer is None else (*super().names(layer), "b_Q", "b_K", "ln1.w")

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        if name in ("b_Q", "b_K", "ln1.w"):
            trained = super().initial(layer, "W_Q" if name == "b_Q" else "W_K", 7)[:, 0]
            return {"b_Q": trained, "b_K": torch.zeros_like(trained), "ln1.w": 1 + trained}[name]
        return super().tensor(layer, name)

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        if name in ("b_Q", "b_K"):
            return torch.zeros_like(self.tensor(layer, name))
        return torch.ones_like(self.tensor(layer, name)) if name == "ln1.w" else super().initial(layer, name, seed)


def test_everything_that_the_plugin_names_exists() -> None:
    host = check_references(gausslens_reinit.plugin)
    assert len(host.edits) == 12
    assert set(host.analyses) == {"reinit.check"}


@pytest.mark.parametrize("edit", [CONFIG, GAUSSIAN, PERMUTE])
def test_as_the_host_applies_it(edit: object) -> None:
    made = check_edit(edit)  # type: ignore[arg-type]
    assert set(made[0]) == {"W_Q", "W_K", "W_V", "W_O"}
    assert not made[None]


def test_config_draws_what_the_model_is_made_of() -> None:
    model = TinyModel(TinyParameters(d_model=64, d_head=16, planted=[(0, 1, 9.0)]))
    drawn = check_edit(CONFIG, model=model)[0]["W_Q"].double()
    # The tiny model's own law is Gaussian of variance 1 / d_model; the planted head is gone.
    assert kstest(drawn.flatten().numpy(), "norm", (0, 1 / 8)).pvalue > 0.001
    n = drawn[1].numel()
    assert abs(float(drawn[1].square().mean()) * 64 - 1) < 4 * np.sqrt(2 / n)


@pytest.mark.parametrize("edit", [GAUSSIAN, PERMUTE])
def test_null_twins_keep_mean_and_variance_in_the_models_own_type(edit: object) -> None:
    model = TinyModel(TinyParameters(d_model=32, planted=[(0, 1, 9.0)]))
    for name, drawn in check_edit(edit, model=model)[0].items():  # type: ignore[arg-type]
        before = model.tensor(0, name).double()
        # float32: the rounding of the drawn entries.
        assert float(drawn.double().mean()) == pytest.approx(float(before.mean()), abs=1e-7)
        assert float(drawn.double().var()) == pytest.approx(float(before.var()), rel=1e-6)


def test_biases_and_norms_go_too_and_what_stays_the_same_is_not_claimed() -> None:
    weights = LayerWeights(Biased(), 0, seed=3)
    fresh = from_config(weights, ConfigParameters(), Generators(1, 0))
    assert set(fresh) == {"W_Q", "W_K", "W_V", "W_O", "b_Q", "ln1.w"}
    assert torch.equal(fresh["b_Q"], torch.zeros_like(fresh["b_Q"]))
    assert torch.equal(fresh["ln1.w"], torch.ones_like(fresh["ln1.w"]))
    noise = gaussian(weights, GaussianParameters(), Generators(1, 0))
    assert set(noise) == {"W_Q", "W_K", "W_V", "W_O", "b_Q"}
    assert not torch.equal(noise["b_Q"], weights["b_Q"])


def test_biases_and_norms_stay_where_they_are_told_to() -> None:
    weights = LayerWeights(Biased(), 0, seed=3)
    fresh = from_config(weights, ConfigParameters(biases=False, norms=False), Generators(1, 0))
    assert set(fresh) == {"W_Q", "W_K", "W_V", "W_O"}


def test_only_the_matrices_asked_for_and_their_biases() -> None:
    weights = LayerWeights(Biased(), 0, seed=3)
    assert set(permute(weights, ReinitParameters(matrices=("W_Q",)), Generators(1, 0))) == {"W_Q", "b_Q"}


def test_it_touches_no_more_than_it_says() -> None:
    for parameters in (ConfigParameters(), ReinitParameters(biases=False), ReinitParameters(matrices=("W_V",))):
        named = set(touched(parameters))
        assert set(parameters.matrices) <= named
        assert ({BIAS_OF[m] for m in parameters.matrices} <= named) == parameters.biases
        assert ("ln1.w" in named) == isinstance(parameters, ConfigParameters)


def test_tensors_of_a_layer_do_not_share_their_noise() -> None:
    model = TinyModel(TinyParameters(heads=2, kv_heads=2))
    drawn = check_edit(GAUSSIAN, model=model)
    k, v = (drawn[0][name].double().flatten() for name in ("W_K", "W_V"))
    assert abs(float(torch.corrcoef(torch.stack([k, v]))[0, 1])) < 4 / np.sqrt(len(k))
    assert abs(float(torch.corrcoef(torch.stack([k, drawn[1]["W_K"].double().flatten()]))[0, 1])) < 4 / np.sqrt(len(k))


def test_the_same_matrix_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="W_K is named twice"):
        ReinitParameters(matrices=("W_K", "W_K"))
