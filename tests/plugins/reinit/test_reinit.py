"""Random re-initialisation: each scheme keeps exactly what it claims, and changes the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import kstest

import gausslens_reinit.plugin
from gausslens import Generators, LayerWeights
from gausslens.testing import TinyModel, TinyParameters, check_edit, check_references
from gausslens_reinit.edits import from_config, gaussian, permute
from gausslens_reinit.noise import matched, shuffled
from gausslens_reinit.parameters import ConfigParameters, ReinitParameters
from gausslens_reinit.plugin import CONFIG, GAUSSIAN, PERMUTE
from gausslens_reinit.tensors import BIAS_OF, touched

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**31)


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


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(shape=shapes, seed=seeds, offset=st.sampled_from([0.0, 0.3, 50.0]))
def test_matched_noise_has_exactly_the_mean_and_variance(shape: tuple[int, ...], seed: int, offset: float) -> None:
    given_tensor = torch.randn(shape, generator=generator(seed), dtype=torch.float64) * 0.02 + offset
    drawn = matched(given_tensor, generator(seed + 1))
    assert drawn.shape == given_tensor.shape
    torch.testing.assert_close(drawn.mean(), given_tensor.mean(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        drawn.var(correction=0), given_tensor.var(correction=0), rtol=1e-9, atol=1e-13 * (1 + offset) ** 2
    )


def test_matched_noise_is_gaussian_whatever_it_replaces() -> None:
    heavy = torch.randn(20_000, generator=generator()) ** 3
    drawn = matched(heavy, generator(1)).double()
    standard = ((drawn - drawn.mean()) / drawn.std()).numpy()
    assert kstest(standard, "norm").pvalue > 0.001
    assert kstest(((heavy - heavy.mean()) / heavy.std()).numpy(), "norm").pvalue < 1e-6


@given(shape=shapes, seed=seeds)
def test_shuffling_keeps_the_values(shape: tuple[int, ...], seed: int) -> None:
    given_tensor = torch.randn(shape, generator=generator(seed))
    drawn = shuffled(given_tensor, generator(seed + 1))
    assert drawn.shape == given_tensor.shape
    assert torch.equal(drawn.flatten().sort().values, given_tensor.flatten().sort().values)


def test_shuffling_reaches_every_order_equally_often() -> None:
    one = generator()
    seen = [tuple(shuffled(torch.arange(3), one).tolist()) for _ in range(6000)]
    counts = np.array([seen.count(order) for order in set(seen)])
    assert len(counts) == 6
    # chi square with 5 degrees of freedom is below 20.5 in 999 of 1000 cases.
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5


def test_everything_that_the_plugin_names_exists() -> None:
    assert {"reinit.config", "reinit.gaussian", "reinit.permute"} <= set(
        check_references(gausslens_reinit.plugin).edits
    )


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
    noise = gaussian(weights, ReinitParameters(), Generators(1, 0))
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
