"""bilinear.spectrum, and the singular values that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import gausslens
import gausslens_bilinear.plugin
from gausslens import Context, LayerWeights, ModelError, Result
from gausslens.maths.laws import MarchenkoPastur
from gausslens.maths.spectra import effective_rank, squared_singular_values
from gausslens.testing import TinyModel, TinyParameters, check_references, check_round_trip, check_weights
from gausslens_bilinear.analyses.spectrum import Spectrum
from gausslens_bilinear.figures.spectrum import _MAPS, _map, _spectrum
from gausslens_bilinear.maths.noise_fit import bulk_if_any
from gausslens_bilinear.parameters import SpectrumParameters
from gausslens_bilinear.plugin import SPECTRUM


@given(n=st.integers(1, 12), m=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), stack=st.integers(1, 3))
def test_squared_singular_values_are_those_of_the_decomposition(n: int, m: int, seed: int, stack: int) -> None:
    A = np.random.default_rng(seed).normal(size=(stack, n, m))
    expected = np.linalg.svd(A, compute_uv=False) ** 2
    found = squared_singular_values(A)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-13 * expected.max())
    assert np.all(np.diff(found) <= 0)


def test_an_ill_conditioned_matrix_keeps_its_small_values() -> None:
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(n, 5)))[0] for n in (20, 30))
    planted = np.array([1.0, 1e-2, 1e-5, 1e-7, 1e-9])
    found = squared_singular_values(u * planted @ v.T)
    np.testing.assert_allclose(found[:5], planted**2, rtol=1e-5)
    assert found[5] < 1e-28


def test_effective_rank() -> None:
    np.testing.assert_allclose(effective_rank([[1.0, 1, 1, 0], [4, 0, 0, 0], [0, 0, 0, 0]]), [3, 1, 0])


def test_everything_that_the_plugin_names_exists() -> None:
    host = check_references(gausslens_bilinear.plugin)
    assert "bilinear.spectrum" in host.analyses


@pytest.mark.parametrize("per_head", [False, True])
def test_as_the_host_runs_it(per_head: bool) -> None:
    result = check_weights(SPECTRUM, SpectrumParameters(per_head=per_head))
    check_round_trip(result)
    assert result["tensor"].values.tolist() == ["W_Q", "W_K", "W_V", "W_O"]


def test_whole_matrices_are_true_tensors_with_key_value_heads_not_repeated() -> None:
    model = TinyModel()
    info, result = model.info, check_weights(SPECTRUM)
    one = result.sel(layer=1)
    shapes = {str(t): (int(one["rows"].sel(tensor=t)), int(one["columns"].sel(tensor=t))) for t in one["tensor"].values}
    d, wide, narrow = info.d_model, info.n_heads * info.d_head, info.n_kv_heads * info.d_head
    assert shapes == {"W_Q": (d, wide), "W_K": (d, narrow), "W_V": (d, narrow), "W_O": (wide, d)}
    for name in ("W_Q", "W_K", "W_O"):
        tensor = model.tensor(1, name).double()
        whole = tensor.reshape(-1, d) if name == "W_O" else tensor.permute(1, 0, 2).reshape(d, -1)
        values = torch.linalg.svdvals(whole).square().numpy()
        found = one["squared"].sel(tensor=name).dropna("feature").values
        np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-12)
        assert float(one["sum"].sel(tensor=name)) == pytest.approx(float(whole.square().sum()))
        assert float(one["maximum"].sel(tensor=name)) == pytest.approx(values[0])
        assert float(one["variance"].sel(tensor=name)) == pytest.approx(float(whole.var(correction=0)))


def test_heads_have_spectra_of_their_own() -> None:
    model = TinyModel()
    result = check_weights(SPECTRUM, SpectrumParameters(per_head=True))
    assert result["head_squared"].dims == ("layer", "head_tensor", "head", "head_feature")
    assert result["kv_head_squared"].dims == ("layer", "kv_head_tensor", "kv_head", "kv_head_feature")
    for name, head, prefix in (("W_Q", 2, "head"), ("W_O", 3, "head"), ("W_K", 1, "kv_head"), ("W_V", 0, "kv_head")):
        values = torch.linalg.svdvals(model.tensor(0, name)[head].double()).square().numpy()
        where = {"layer": 0, f"{prefix}_tensor": name, prefix: head}
        np.testing.assert_allclose(result[f"{prefix}_squared"].sel(where), values, rtol=1e-9)
        assert float(result[f"{prefix}_maximum"].sel(where)) == pytest.approx(values[0])


def test_random_weights_are_noise_and_a_planted_head_is_not() -> None:
    plain = TinyParameters(d_model=48, d_head=12, heads=4, kv_heads=4)
    chance = check_weights(SPECTRUM, model=TinyModel(plain))
    assert float(chance["distance"].max()) < 0.1
    assert float(np.abs(chance["maximum_law_z"]).max()) < 4
    planted = TinyModel(plain.model_copy(update={"planted": [(1, 2, 8.0)]}))
    found = check_weights(SPECTRUM, model=planted)
    assert float(found["beyond"].sel(layer=1, tensor="W_Q")) >= 3
    assert float(found["maximum_law_z"].sel(layer=1, tensor="W_Q")) > 10
    np.testing.assert_array_equal(found["squared"].sel(tensor="W_K"), chance["squared"].sel(tensor="W_K"))


class Planted(TinyModel):
    """Of layer 0, W_Q and W_O are noise of standard deviation 0.3, W_K too but for one direction, W_V is no noise."""

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        tensor = super().tensor(layer, name)
        if layer != 0 or name not in ("W_Q", "W_K", "W_V", "W_O"):
            return tensor
        rng = np.random.default_rng(len(name) + ord(name[-1]))
        made = rng.normal(0, 0.3, tuple(tensor.shape))
        if name == "W_V":
            # Columns of very different sizes: their product law is not that of Marchenko and Pastur.
            made *= np.geomspace(0.05, 5, made.shape[1])[:, None]
        if name == "W_K":
            heads, d, d_head = made.shape
            u, v = rng.normal(size=d), rng.normal(size=heads * d_head)
            spike = 30 * np.outer(u / np.linalg.norm(u), v / np.linalg.norm(v))
            made += spike.reshape(d, heads, d_head).swapaxes(0, 1)
        return torch.from_numpy(made).to(tensor)


PLANTED = TinyParameters(d_model=96, d_head=24, heads=4, kv_heads=4)


def test_one_law_is_fitted_to_the_bulk_and_judges_all() -> None:
    found = check_weights(SPECTRUM, model=Planted(PLANTED)).sel(layer=0)
    n, s2 = 96, 0.3**2
    true = MarchenkoPastur(n, n, s2)
    # The sum of n n squares has a relative spread of sqrt(2/(n n)), and the fit is of that sum.
    spread = 4 * np.sqrt(2 / n**2)
    for name, spikes in (("W_Q", 0), ("W_O", 0), ("W_K", 1)):
        one = found.sel(tensor=name)
        assert float(one["bulk_accepted"]) == 1
        assert float(one["spikes"]) == float(one["beyond"]) == spikes
        assert float(one["bulk_variance"]) == pytest.approx(s2, rel=spread)
        assert float(one["law_upper"]) == float(one["bulk_upper"])
        # A spike takes one of the 96 dimensions out of the bulk.
        assert float(one["law_upper"]) == pytest.approx(true.edges[1], rel=spread + spikes / n)
        assert float(one["distance"]) < 0.02 + (3 + spikes) / n
        assert (float(one["maximum_law_z"]) > 100) == (spikes > 0)
        assert abs(float(one["maximum_law_mean"]) / true.largest[0] - 1) < spread + spikes / n
    # The entries' own variance holds the spike: its law would put the edge at twice the height.
    spiked = found.sel(tensor="W_K")
    assert float(spiked["variance"]) > 1.9 * float(spiked["bulk_variance"])
    told = found.sel(tensor="W_V")
    assert float(told["bulk_accepted"]) == 0
    assert np.isnan(float(told["spikes"]))
    assert float(told["distance"]) > 0.1


def test_the_page_tells_where_no_bulk_is_accepted_and_draws_the_law_that_judges() -> None:
    data = check_weights(SPECTRUM, SpectrumParameters(per_head=True), model=Planted(PLANTED))
    result = Result("trained", "bilinear.spectrum", data)
    refused = int((data["bulk_accepted"] == 0).sum())
    assert refused >= 1
    beyond, distance = (_map(result, name, *_MAPS[name]) for name in ("beyond", "distance"))
    for figure in (beyond, distance):
        assert f"In {refused} of 8 matrices" in figure.caption
        assert "blocks of key/value heads" in figure.caption
    np.testing.assert_array_equal(np.isnan(np.asarray(beyond.values)), (data["bulk_accepted"] == 0).values)
    assert np.isfinite(np.asarray(distance.values)).all()
    drawn = _spectrum(result, [], 0, "W_K")
    assert "Above the level of noise: 1." in drawn.caption
    where = data.sel(layer=0, tensor="W_K")
    assert drawn.edges == pytest.approx((float(where["law_lower"]), float(where["law_upper"])))
    law = next(line for line in drawn.series if line.reference)
    assert len(np.asarray(law.y)) == 96
    assert np.asarray(law.y).max() == pytest.approx(float(where["law_upper"]))
    assert "(bulk_accepted 0)" in _spectrum(result, [], 0, "W_V").caption
    accepted = Result("noise", "bilinear.spectrum", data.sel(layer=[0], tensor=["W_Q"])[["beyond", "bulk_accepted"]])
    assert "bulk_accepted" not in _map(accepted, "beyond", *_MAPS["beyond"]).caption


def test_only_the_matrices_asked_for_in_that_order() -> None:
    result = check_weights(SPECTRUM, SpectrumParameters(matrices=("W_O", "W_Q")))
    assert result["tensor"].values.tolist() == ["W_O", "W_Q"]


def test_layers_without_the_matrices_are_left_out() -> None:
    model = TinyModel(TinyParameters(layers=3, attention_free=[1]))
    result = check_weights(SPECTRUM, model=model)
    assert result["layer"].values.tolist() == [0, 2]


def test_matrices_that_no_layer_has_are_an_error() -> None:
    model = TinyModel()
    spectrum = Spectrum(SpectrumParameters(matrices=("W_gate",)), Context(model.info, 0))
    parts = {n: spectrum.layer(LayerWeights(model, n), n) for n in model.info.layers}
    with pytest.raises(ModelError, match="no layer of tiny has any of W_gate"):
        spectrum.join(parts)


def test_a_matrix_of_zeros_has_no_law() -> None:
    class Zeros(TinyModel):
        def tensor(self, layer: int | None, name: str) -> torch.Tensor:
            return torch.zeros_like(super().tensor(layer, name))

    result = check_weights(SPECTRUM, model=Zeros())
    assert float(result["maximum"].max()) == 0
    assert np.isnan(result["distance"]).all()


def test_a_matrix_of_half_its_rank_has_no_law() -> None:
    """Values that explain each other as spikes until nothing but zeros is left are no bulk, and no failure."""
    found = [2.29, 1.9, 1.84, 1.76, 1.64, 1.58, 1.53, 1.43, 1.34, 1.26, 1.21, 1.17, 1.13, 1.07, 1.0, 0.8]
    assert bulk_if_any(found + [0.0] * 16, 64, 32) is None


def test_the_same_matrix_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="W_Q is named twice"):
        SpectrumParameters(matrices=("W_Q", "W_Q"))


def _noise(name: str, config: str, arguments: dict[str, Any]) -> Any:
    """A real module whose attention is noise; where q, k and v are fused, q and k have four times the variance of v."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name)(getattr(transformers, config)(**arguments))
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.data = torch.randn(parameter.shape) * 0.05
                if "c_attn" in parameter_name:
                    parameter.data[:, : 2 * parameter.shape[1] // 3] *= 2
    return model.eval()


@pytest.mark.parametrize("grouped", [True, False])
def test_noise_has_no_spikes_whether_heads_are_grouped_or_fused(grouped: bool, tmp_path: Path) -> None:
    """Through the loader: true tensors of grouped-query and of fused attention; 4 or 12 heads, of 16."""
    small = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 12, "max_position_embeddings": 32}
    if grouped:
        more = small | {"hidden_size": 192, "intermediate_size": 300, "num_key_value_heads": 4, "pad_token_id": 0}
        model = _noise("LlamaForCausalLM", "LlamaConfig", more)
    else:
        model = _noise("GPT2LMHeadModel", "GPT2Config", small | {"hidden_size": 192})
    analyses = [{"use": "bilinear.spectrum", "with": {"per_head": True}}, {"use": "bilinear.alignment"}]
    study = {"gausslens": 1, "name": "noise", "model": {}, "analyses": analyses, "report": False}
    results = gausslens.run(study, store=tmp_path, model=model)
    found = results["trained", "bilinear.spectrum"]
    assert (found["bulk_accepted"] == 1).all()
    assert float(found["spikes"].max()) <= 1
    assert float(found["beyond"].max()) <= 1
    # One in a hundred: of 14 matrices or so none or one has a spike; of 2 x 12 heads and more, a few.
    assert float(found["spikes"].sum()) <= 2
    for name in ("head_spikes", "kv_head_spikes"):
        assert float(found[name].max()) <= 1
        assert float(found[name].mean()) < 0.08
    of_products = results["trained", "bilinear.alignment"]
    assert (of_products["qk_bulk_accepted"] == 1).all()
    assert float(of_products["qk_spikes"].max()) <= 1
    assert float(of_products["ov_spikes"].max()) <= 1
    assert found.sizes["kv_head"] == (4 if grouped else 12)
