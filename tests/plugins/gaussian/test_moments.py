"""gaussian.moments: as the host runs it, and on batches made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import gausslens_gaussian.plugin
from gausslens import Context, GausslensError
from gausslens.testing import TinyModel, TinyParameters, check_references, check_round_trip, check_stream
from gausslens_gaussian.analyses.moments import Moments, estimate
from gausslens_gaussian.parameters import MomentsParameters
from gausslens_gaussian.plugin import MOMENTS

from .batches import batch


def after_bos(values: np.ndarray) -> np.ndarray:
    """The same with a first position, which does not count, before them."""
    return np.concatenate([np.full_like(values[:, :1], 1e3), values], axis=1)


def made(**parameters: Any) -> Moments:
    return Moments(MomentsParameters(**parameters), Context(TinyModel().info, 0))


def test_everything_that_the_plugin_names_exists() -> None:
    host = check_references(gausslens_gaussian.plugin)
    assert {"gaussian.moments", "gaussian.compare"} <= set(host.analyses)


@pytest.mark.parametrize("site", ["embed", "resid_pre", "q", "v", "z"])
def test_it_does_not_matter_how_prompts_are_cut(site: str) -> None:
    # In float64: another shard moves float32 activations by their rounding, which is not ours to test.
    result = check_stream(MOMENTS, MomentsParameters(site=site), model=TinyModel(dtype="float64"), rtol=1e-9)
    check_round_trip(result)
    assert ("layer" in result.dims) == (site != "embed")
    assert result["trace"].dims[1:] == {"q": ("head",), "z": ("head",), "v": ("kv_head",)}.get(site, ())


@pytest.mark.parametrize(
    ("site", "more"),
    [
        ("embed", {"robust": True, "principal": 2}),
        ("q", {"robust": True, "principal": 2}),
        ("resid_pre", {"robust": True, "principal": 2, "sketch": 8, "keep": 4}),
    ],
)
def test_its_state_is_committed_on_the_way(site: str, more: dict[str, Any]) -> None:
    parameters = MomentsParameters(site=site, covariance=True, **more)
    check_stream(MOMENTS, parameters, model=TinyModel(dtype="float64"), rtol=1e-6, atol=1e-6)


def test_layers_without_attention_are_left_out() -> None:
    model = TinyModel(TinyParameters(layers=3, attention_free=[1]))
    result = check_stream(MOMENTS, MomentsParameters(site="q"), model=model, atol=1e-6)
    assert result["layer"].values.tolist() == [0, 2]


def test_a_planted_gaussian_is_found() -> None:
    rng = np.random.default_rng(0)
    scale, mean, n = np.array([3.0, 2.0, 1.0, 0.5]), np.array([10.0, 0, 0, -5.0]), 40_000
    analysis = made(keep=2)
    for part in np.array_split(rng.normal(size=(n // 100, 100, 4)) * scale + mean, 7):
        analysis.update(batch("resid_pre", after_bos(part)))
    result = analysis.result().isel(layer=0)
    variance = scale**2
    # sd of a sample variance of a Gaussian is variance sqrt(2 / (n - 1)); trace adds independent ones.
    error = np.sqrt(2 / (n - 1))
    assert int(result["count"]) == n
    assert abs(float(result["trace"]) - variance.sum()) < 3 * error * np.sqrt((variance**2).sum())
    assert np.all(np.abs(result["spectrum"].values - variance[:2]) < 3 * error * variance[:2])
    assert np.all(np.abs(result["mean"].values - mean) < 4 * scale / np.sqrt(n))
    exact = 0.5 * np.log(2 * np.pi * np.e * variance).sum()
    # The sample entropy has sd sqrt(d / 2n) and bias -d(d + 1) / 4n.
    assert abs(float(result["entropy"]) - exact) < 3 * np.sqrt(4 / (2 * n)) + 20 / (4 * n)
    p = variance / variance.sum()
    assert float(result["effective_rank"]) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=0.02)
    assert float(result["anisotropy"]) == pytest.approx(p.max(), rel=0.02)


def test_lengths_tell_a_sphere_from_a_cloud() -> None:
    rng = np.random.default_rng(1)
    sphere = rng.normal(size=(4, 500, 64))
    sphere *= 8 / np.linalg.norm(sphere, axis=-1, keepdims=True)
    analysis = made()
    analysis.update(batch("resid_pre", sphere, layer=0))
    analysis.update(batch("resid_pre", rng.normal(size=(4, 500, 64)), layer=1))
    result = analysis.result()
    np.testing.assert_allclose(result["length_mean"], [8, 8], rtol=0.01)
    assert float(result["length_sd"][0]) < 1e-12
    # The length of a standard Gaussian has variance 1/2, less a term of order 1/d.
    assert float(result["length_sd"][1]) == pytest.approx(np.sqrt(0.5), abs=0.05)


def test_only_text_beyond_the_first_position_counts_unless_more_is_asked_for() -> None:
    rng = np.random.default_rng(2)
    values, text = rng.normal(size=(3, 20, 4)), rng.random((3, 20)) < 0.5
    text[:2, 0] = True  # a tokenizer that writes no BOS
    values[~text] = 1e6
    beyond = text.copy()
    beyond[:, 0] = False
    for tokens, chosen in (("text", beyond), ("all-text", text), ("all", np.ones_like(text))):
        analysis = made(tokens=tokens)
        analysis.update(batch("resid_pre", values, text=text))
        result = analysis.result().isel(layer=0)
        assert int(result["count"]) == chosen.sum()
        np.testing.assert_allclose(result["covariance"], np.cov(values[chosen].T), rtol=1e-9)
        assert int(result["apart_count"]) == (~chosen).sum()
        if (~chosen).any():
            lengths = np.linalg.norm(values[~chosen], axis=-1)
            assert float(result["apart_length_mean"]) == pytest.approx(lengths.mean())


def test_two_byte_activations_lose_nothing_more() -> None:
    values = np.random.default_rng(3).normal(50, 1, (2, 300, 3)).astype(np.float32)
    given = batch("resid_pre", values)
    given.arrays = {"resid_pre": torch.from_numpy(values).bfloat16()}
    analysis = made(tokens="all")
    analysis.update(given)
    kept = given.arrays["resid_pre"].double().numpy().reshape(-1, 3)
    np.testing.assert_allclose(analysis.result()["covariance"][0], np.cov(kept.T), rtol=1e-10)


def test_a_wide_site_keeps_its_diagonal_and_leading_directions() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(size=(1, 300, 1100)) * np.linspace(2, 0.1, 1100)
    analysis = made(site="mlp_out", keep=3, tokens="all")
    analysis.update(batch("mlp_out", values))
    result = analysis.result().isel(layer=0)
    assert "covariance" not in result
    covariance = np.cov(values[0].T)
    np.testing.assert_allclose(result["variance"], np.diag(covariance), rtol=1e-10)
    u = result["directions"].values
    np.testing.assert_allclose(u @ covariance @ u.T, np.diag(result["spectrum"].values), atol=1e-8)
    assert int(result["rank"]) == 299


def test_one_token_is_too_few_and_it_says_so() -> None:
    analysis = made()
    analysis.update(batch("resid_pre", np.ones((1, 2, 4))))
    with pytest.raises(GausslensError, match=r"two text tokens beyond the first position or more, and there were 1"):
        analysis.result()


@pytest.mark.parametrize("site", ["scores", "pattern", "logits"])
def test_what_holds_no_vectors_is_refused(site: str) -> None:
    with pytest.raises(ValidationError, match=f"{site} holds .*, not vectors"):
        MomentsParameters(site=site)


def test_the_estimate_is_what_is_held_and_stored() -> None:
    info = TinyModel().info
    analysis = made(site="q")
    values = np.random.default_rng(5).normal(size=(2, 9, info.n_heads, info.d_head))
    for layer in info.layers:
        analysis.update(batch("q", values, layer=layer))
    held = sum(state.vectors.scatter.nbytes for state in analysis.first.values())
    told = estimate(analysis.parameters, info, None)
    assert told.memory == 2 * held
    assert told.disk == analysis.result()["covariance"].nbytes


def test_principal_directions_of_a_second_pass_see_what_random_ones_blur() -> None:
    """One coordinate of two values, large; 63 Gaussian ones: random directions look normal, the first does not."""
    rng = np.random.default_rng(6)
    values = rng.normal(size=(20, 401, 64))
    values[:, :, 0] = 5 * rng.choice([-1, 1], size=(20, 401))
    analysis = made(principal=3)
    analysis.update(batch("resid_pre", values))
    analysis.end_pass(0)
    analysis.update(batch("resid_pre", values))
    result = analysis.result().isel(layer=0)
    # Two values have kurtosis -2; the rest of that direction is sampling.
    assert float(result["principal_kurtosis"][0]) == pytest.approx(-2, abs=0.05)
    assert np.abs(result["principal_kurtosis"][1:]).max() < 5 * float(result["kurtosis_null_sd"])
    assert float(result["principal_p"][0]) < 1e-10
    assert np.median(np.abs(result["kurtosis"])) < 0.3
    assert float(result["kurtosis_null_sd"]) == pytest.approx(np.sqrt(24 / 8000), rel=0.01)


def test_of_gaussian_streams_a_twentieth_of_the_directions_is_beyond() -> None:
    analysis = made()
    analysis.update(batch("resid_pre", np.random.default_rng(7).normal(size=(10, 301, 64))))
    result = analysis.result().isel(layer=0)
    # 64 nearly independent directions: binomial with sd 0.027.
    assert float(result["not_normal"]) < 0.05 + 3 * 0.027
    assert abs(float(result["kurtosis_mean"])) < 4 * float(result["kurtosis_null_sd"]) / 8


def test_the_bias_of_the_entropy_is_given() -> None:
    rng = np.random.default_rng(8)
    found = []
    for _ in range(200):
        analysis = made(covariance=False)
        analysis.update(batch("resid_pre", after_bos(rng.normal(size=(1, 30, 8)))))
        result = analysis.result().isel(layer=0)
        found.append(float(result["entropy"] - result["entropy_bias"]))
    exact = 8 / 2 * np.log(2 * np.pi * np.e)
    assert abs(np.mean(found) - exact) < 3 * np.std(found) / np.sqrt(200)
    assert float(result["count_per_dimension"]) == 30 / 8


def test_activations_that_are_not_finite_are_refused() -> None:
    values = np.ones((2, 9, 4))
    values[1, 4, 2] = np.inf
    analysis = made()
    with np.errstate(invalid="ignore"):
        analysis.update(batch("resid_pre", values, layer=3))
    with pytest.raises(GausslensError, match="in layer 3 are not finite"):
        analysis.result()
