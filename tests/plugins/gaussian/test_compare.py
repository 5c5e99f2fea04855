"""gaussian.compare: divergences between variants, from stored moments."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from pydantic import ValidationError

from gausslens import Context, InputError, StepRef
from gausslens.testing import TinyModel, check_derived
from gausslens_gaussian.compare import Compare
from gausslens_gaussian.information import frechet, kl
from gausslens_gaussian.parameters import CompareParameters
from gausslens_gaussian.plugin import COMPARE

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
        assert float(result["kl"][layer]) == pytest.approx(kl(*pair))
        assert float(result["kl_reverse"][layer]) == pytest.approx(kl(*pair[2:], *pair[:2]))
        assert float(result["frechet"][layer]) == pytest.approx(frechet(*pair))


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
