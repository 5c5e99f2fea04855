"""gaussian.compare: divergences between variants, from stored moments."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from pydantic import ValidationError

from gausslens import Context, InputError, StepRef
from gausslens.testing import TinyModel, check_derived
from gausslens_gaussian.analyses.compare import BetweenLayers, Compare
from gausslens_gaussian.maths.geometry import leading, principal_angles
from gausslens_gaussian.maths.information import frechet_distance, gaussian_kl, jensen_shannon
from gausslens_gaussian.parameters import BetweenLayersParameters, CompareParameters
from gausslens_gaussian.plugin import BETWEEN_LAYERS, COMPARE

PARAMETERS = CompareParameters(of="streams", between=("trained", "chance"))


def moments(seed: int, lead: tuple[tuple[str, int], ...] = (("layer", 2),)) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    shape = tuple(n for _, n in lead)
    A = rng.normal(size=(*shape, 3, 5))
    names = tuple(name for name, _ in lead)
    return xr.Dataset(
        {
            "mean": ((*names, "feature"), rng.normal(size=(*shape, 3))),
            "covariance": ((*names, "feature", "feature_other"), A @ np.swapaxes(A, -1, -2)),
            # One number for all heads, as gaussian.moments has it.
            "count": (names[:1], np.full(shape[:1], 60)),
        },
        coords={name: np.arange(n) for name, n in lead},
    )


def ref(variant: str, draw: int | None = None, label: str = "streams", **sweep: float) -> StepRef:
    return StepRef(variant, label, "gaussian.moments", draw, tuple(sweep.items()))


def compare() -> Compare:
    return Compare(PARAMETERS, Context(TinyModel().info, 0))


def test_divergences_of_each_layer() -> None:
    p, q = moments(0), moments(1)
    result = check_derived(COMPARE, {ref("trained"): p, ref("chance"): q}, PARAMETERS)
    for layer in range(2):
        pair = [d[name].values[layer] for d in (p, q) for name in ("mean", "covariance")]
        assert float(result["kl"][layer]) == pytest.approx(gaussian_kl(*pair))
        assert float(result["kl_reverse"][layer]) == pytest.approx(gaussian_kl(*pair[2:], *pair[:2]))
        assert float(result["frechet"][layer]) == pytest.approx(frechet_distance(*pair))
        root = np.sqrt((np.trace(pair[1]) + np.trace(pair[3])) / 2)
        assert float(result["frechet_relative"][layer]) == pytest.approx(frechet_distance(*pair) / root)
        exact = jensen_shannon(*pair, draws=100_000)
        assert abs(float(result["jensen_shannon"][layer]) - exact.value) < 4 * float(result["jensen_shannon_se"][layer])
        angles = principal_angles(leading(pair[1], 3), leading(pair[3], 3))
        np.testing.assert_allclose(result["angles"][layer], angles, atol=1e-12)


def scaled(data: xr.Dataset, by: float, count: int) -> xr.Dataset:
    return data.assign(mean=data["mean"] * by, covariance=data["covariance"] * by**2, count=data["count"] * 0 + count)


def test_a_twin_that_differs_by_its_scale_is_told_to_differ_by_its_scale() -> None:
    p = scaled(moments(0), 1.0, 1000)
    result = check_derived(COMPARE, {ref("trained"): scaled(p, 1e3, 1000), ref("chance"): p}, PARAMETERS)
    # What saturates says that they differ; the others say in what.
    assert float(result["kl"].min()) > 1e5
    np.testing.assert_allclose(result["jensen_shannon"], np.log(2), rtol=0.01)
    np.testing.assert_allclose(result["scale_log_ratio"], np.log(1e3))
    for name in ("shape_distance", "spectrum_distance", "shape_divergence", "correlation_distance"):
        np.testing.assert_allclose(result[name], 0, atol=1e-6, err_msg=name)
        assert (result[f"{name.removesuffix('_distance').removeprefix('shape_')}_of_equals"] > 0).all()
    # Of covariances that are one and the same, the noise that is subtracted is not there: above 1 by the order of d/n.
    np.testing.assert_allclose(result["covariance_cosine"], 1, atol=0.02)
    assert "log 2, in 2 of 2 cells" in result.attrs["warning"]
    assert "fewer than" not in result.attrs["warning"]


def test_equal_gaussians_of_few_vectors_are_told_to_be_no_further_apart_than_that() -> None:
    rng, many, n, d = np.random.default_rng(3), 150, 24, 6
    samples = rng.normal(size=(2, many, n, d)) * np.arange(1, d + 1)
    sides = []
    for side in samples:
        covariances = np.stack([np.cov(one.T) for one in side])
        variables = {
            "mean": (("layer", "feature"), side.mean(axis=1)),
            "covariance": (("layer", "feature", "feature_other"), covariances),
            "count": ("layer", np.full(many, n)),
        }
        sides.append(xr.Dataset(variables, coords={"layer": np.arange(many)}))
    parameters = PARAMETERS.model_copy(update={"draws": 2})
    result = check_derived(COMPARE, {ref("trained"): sides[0], ref("chance"): sides[1]}, parameters)

    def off(name: str, expected: float) -> float:
        values = result[name].values
        return float(abs(values.mean() - expected) / (values.std(ddof=1) / np.sqrt(many)))

    for name in ("kl_corrected", "kl_reverse_corrected", "mean_shift", "scale_log_ratio"):
        assert off(name, 0) < 4, name
    for name in ("kl", "kl_reverse"):
        assert off(name, float(result[f"{name}_of_equals"][0])) < 4, name
        assert float(result[name].mean()) > 1
    # Of the floor of the shape the spectrum is not known: within a fifth.
    assert float(result["shape_of_equals"].mean()) == pytest.approx(float(result["shape_distance"].mean()), rel=0.2)
    assert result.attrs["vectors_for_each_dimension"] == 4
    assert "150 of 150 cells have fewer than 10 vectors for each dimension (the least 4)" in result.attrs["warning"]
    assert "one prompt are not" in result.attrs["warning"]


def test_of_one_fit_found_twice_nothing_is_subtracted() -> None:
    """As of the embeddings of a twin whose embeddings are the model's."""
    p = moments(0)
    result = check_derived(COMPARE, {ref("trained"): p, ref("chance"): p}, PARAMETERS)
    for name in ("kl_corrected", "kl_reverse_corrected", "mean_shift"):
        np.testing.assert_array_equal(result[name], 0, err_msg=name)
    np.testing.assert_array_equal(result["covariance_cosine"], 1)


def test_many_vectors_near_each_other_carry_no_warning_and_pairs_can_be_left_out() -> None:
    p, q = (scaled(data, 1.0, 30) for data in (moments(0), moments(0) + 0.1))
    parameters = PARAMETERS.model_copy(update={"equals": 0})
    result = check_derived(COMPARE, {ref("trained"): p, ref("chance"): q}, parameters)
    assert "warning" not in result.attrs
    assert "kl_of_equals" in result
    assert "shape_of_equals" not in result


def test_the_warning_is_of_all_draws() -> None:
    inputs = {ref("trained"): scaled(moments(0), 1, 900)} | {
        ref("chance", draw): scaled(moments(draw + 1), 1, count) for draw, count in enumerate((900, 12))
    }
    result = check_derived(COMPARE, inputs, PARAMETERS)
    assert "2 of 4 cells" in result.attrs["warning"]
    assert result.attrs["vectors_for_each_dimension"] == 4


def test_draws_of_one_side_become_a_dimension_and_are_compared_with_the_other() -> None:
    inputs = {ref("trained"): moments(0)} | {ref("chance", draw): moments(draw + 1) for draw in range(3)}
    result = check_derived(COMPARE, inputs, PARAMETERS)
    assert result["kl"].dims == ("draw", "layer")
    assert result.sizes["draw"] == 3
    alone = check_derived(COMPARE, {ref("trained"): moments(0), ref("chance"): moments(2)}, PARAMETERS)
    np.testing.assert_array_equal(result["kl"].sel(draw=1), alone["kl"])


def test_draws_of_both_sides_are_paired() -> None:
    inputs = {ref("trained", d): moments(d) for d in range(3)} | {ref("chance", d): moments(d + 9) for d in range(2)}
    assert check_derived(COMPARE, inputs, PARAMETERS)["draw"].values.tolist() == [0, 1]


def test_heads_are_compared_one_by_one() -> None:
    lead = (("layer", 2), ("head", 3))
    result = check_derived(COMPARE, {ref("trained"): moments(0, lead), ref("chance"): moments(1, lead)}, PARAMETERS)
    assert result["kl"].dims == ("layer", "head")


def test_it_takes_only_what_it_was_told_to() -> None:
    steps = [ref("trained"), ref("chance", 0), ref("other"), ref("trained", label="else")]
    assert compare().inputs(steps) == [ref("trained"), ref("chance", 0)]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([ref("trained", label="values"), ref("chance", label="values")], "has the label 'streams'; there are values"),
        ([ref("trained")], "'streams' is not computed on the variant 'chance'"),
        ([ref("trained"), ref("chance", alpha=2.0)], "'chance' is swept"),
        ([StepRef("trained", "streams", "bilinear.spectrum"), ref("chance")], "is bilinear.spectrum, not"),
    ],
)
def test_what_cannot_be_compared_is_told_when_the_run_is_planned(steps: list[StepRef], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare().inputs(steps)


def test_without_whole_covariances_it_says_what_to_change() -> None:
    thin = moments(0).drop_vars("covariance")
    with pytest.raises(InputError, match="covariance: true"):
        compare().compute({ref("trained"): thin, ref("chance"): thin})


def test_a_variant_is_not_compared_with_itself() -> None:
    with pytest.raises(ValidationError, match="trained is named twice"):
        CompareParameters(of="streams", between=("trained", "trained"))


def between(**parameters: object) -> xr.Dataset:
    chosen = BetweenLayersParameters(of="streams", **parameters)
    inputs = {ref("trained"): moments(0, (("layer", 4),)), ref("trained", label="values"): moments(1, (("layer", 4),))}
    return check_derived(BETWEEN_LAYERS, inputs, chosen)


def test_each_layer_and_the_next() -> None:
    result, p = between(), moments(0, (("layer", 4),))
    assert result["layer"].values.tolist() == [0, 1, 2]
    pair = [p[name].values[layer] for layer in (1, 2) for name in ("mean", "covariance")]
    assert float(result["kl"].sel(layer=1)) == pytest.approx(gaussian_kl(*pair))
    assert result["kl"].attrs["long_name"] == "D(layer || the next)"


def test_all_pairs_of_layers() -> None:
    result, p = between(pairs="all"), moments(0, (("layer", 4),))
    assert dict(result["frechet"].sizes) == {"layer_other": 4, "layer": 4}
    np.testing.assert_allclose(np.diag(result["frechet"]), 0, atol=1e-6)
    np.testing.assert_allclose(result["frechet"], result["frechet"].values.T, rtol=1e-7, atol=1e-7)
    pair = [p[name].values[layer] for layer in (3, 1) for name in ("mean", "covariance")]
    assert float(result["kl"].sel(layer=3, layer_other=1)) == pytest.approx(gaussian_kl(*pair))


def test_two_sites_layer_by_layer() -> None:
    result = between(to="values")
    p, q = moments(0, (("layer", 4),)), moments(1, (("layer", 4),))
    pair = [d[name].values[2] for d in (p, q) for name in ("mean", "covariance")]
    assert float(result["kl"].sel(layer=2)) == pytest.approx(gaussian_kl(*pair))


def test_the_fit_of_the_bulk_is_compared_where_it_is_asked_for() -> None:
    p = moments(0)
    robust = p.rename(mean="robust_mean", covariance="robust_covariance").drop_vars("count")
    robust["outlier_share"] = ("layer", [0.0, 0.5])
    both = moments(5).merge(robust)
    parameters = CompareParameters(of="streams", between=("trained", "chance"), fit="robust")
    result = check_derived(COMPARE, {ref("trained"): both, ref("chance"): both}, parameters)
    np.testing.assert_allclose(result["kl"], 0, atol=1e-9)
    # The bulk is of fewer vectors: half of 60 in the second layer, for three dimensions.
    np.testing.assert_allclose(result["vectors_per_dimension"], [20, 10])
    with pytest.raises(InputError, match="`robust: true`"):
        check_derived(COMPARE, {ref("trained"): p, ref("chance"): p}, parameters)


@pytest.mark.parametrize(
    ("parameters", "steps", "words"),
    [
        ({"of": "absent"}, [ref("trained")], "no gaussian.moments step has the label 'absent'; there are streams"),
        ({"of": "spectra"}, [StepRef("trained", "spectra", "bilinear.spectrum")], "is bilinear.spectrum, not"),
        ({"of": "streams", "to": "absent"}, [ref("trained")], "has the label 'absent'"),
        ({"of": "streams"}, [], "there are none at all"),
    ],
)
def test_labels_that_are_not_moments_are_told(parameters: dict[str, str], steps: list[StepRef], words: str) -> None:
    with pytest.raises(InputError, match=words):
        BetweenLayers(BetweenLayersParameters(**parameters), Context(TinyModel().info, 0)).inputs(steps)


def test_one_layer_or_other_widths_cannot_be_compared() -> None:
    analysis = BetweenLayers(BetweenLayersParameters(of="streams"), Context(TinyModel().info, 0))
    with pytest.raises(InputError, match="fewer than two layers"):
        analysis.compute({ref("trained"): moments(0, (("layer", 1),))})
    other = BetweenLayers(BetweenLayersParameters(of="streams", to="values"), Context(TinyModel().info, 0))
    narrow = moments(1).isel(feature=slice(2), feature_other=slice(2))
    with pytest.raises(InputError, match="not alike"):
        other.compute({ref("trained"): moments(0), ref("trained", label="values"): narrow})
