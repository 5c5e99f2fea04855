"""What a fitted Gaussian says, as named variables: one dictionary for each layer, stacked into a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens.maths.moments import Floats, RunningMoments, anisotropy, effective_rank, rank, spectrum, support_entropy

from .lengths import OWNED
from .normality import kurtosis_law, normality_p, skewness_sd
from .sampling import entropy_bias
from .sketch import RunningSketch

if TYPE_CHECKING:
    from .observed import First, Second

# Up to this width the whole covariance is stored; beyond it, the diagonal and the leading directions.
WHOLE = 1024
Vectors = RunningMoments | RunningSketch
# A variable: dimensions after those of layer and head, values, and attributes.
Variable = tuple[tuple[str, ...], Any, dict[str, Any]]
SQUARE = "squared activation"


def attributes(long_name: str, units: str, against: int | None = None) -> dict[str, Any]:
    """``against=0`` leaves a variable out of comparisons with a null."""
    return {"long_name": long_name, "units": units} | ({} if against is None else {"against": against})


def first_pass(first: First, keep: int, covariance: bool) -> dict[str, Variable]:
    """The plain fit, lengths, and how normal it is along random directions."""
    vectors = first.vectors
    count = vectors.count
    width = vectors.mean.shape[-1]
    variables: dict[str, Variable] = {
        # With heads in front these two are the same for all of them, and have no such axis.
        "count": ((), np.int64(count), attributes("vectors counted", "tokens", against=0)),
        "count_per_dimension": ((), count / width, attributes("vectors for each dimension", "1", against=0)),
        "mean": (("feature",), vectors.mean, attributes("mean vector", "activation")),
    }
    if isinstance(vectors, RunningSketch):
        variables |= _sketched(vectors, keep)
    else:
        variables |= _whole(vectors, keep, covariance)
    return variables | _lengths(first) | _shape(first)


def second_pass(second: Second, count: int, keep: int, covariance: bool, heads: bool) -> dict[str, Variable]:
    """The shape along the leading directions, and the fit of the bulk; ``heads``: there is an axis of heads."""
    variables: dict[str, Variable] = {}
    if second.shape.count:
        skewness, kurtosis = second.shape.skewness, second.shape.kurtosis
        p = normality_p(skewness, kurtosis, second.shape.count)
        along = ("direction",)
        where = "along each leading principal direction"
        variables |= {
            "principal_skewness": (along, skewness, attributes(f"skewness {where}", "1", against=0)),
            "principal_kurtosis": (along, kurtosis, attributes(f"excess kurtosis {where}", "1", against=0)),
            "principal_p": (along, p, attributes(f"p {where} under a Gaussian", "1", against=0)),
        }
    if second.inside:
        variables |= _robust(second.inside, count, keep, covariance, heads)
    return variables


def stacked(parts: Mapping[int | None, dict[str, Variable]], lead: Sequence[str]) -> xr.Dataset:
    """The dataset of all layers; of a site of the whole model (layer None), without a layer dimension.

    Axes before those that a variable names are ``lead``, as ("head",); all axes but those are numbered.
    """
    layers = sorted(parts, key=lambda layer: -1 if layer is None else layer)
    variables = {}
    for name, (dims, values, attrs) in parts[layers[0]].items():
        inner = (*tuple(lead)[: np.ndim(values) - len(dims)], *dims)
        if layers == [None]:
            variables[name] = (inner, values, attrs)
        else:
            joined = np.stack([np.asarray(parts[layer][name][1]) for layer in layers])
            variables[name] = (("layer", *inner), joined, attrs)
    dataset = xr.Dataset(variables)
    axes = {str(name): np.arange(size) for name, size in dataset.sizes.items() if name not in (*lead, "layer")}
    return dataset.assign_coords(axes if layers == [None] else {**axes, "layer": np.array(layers)})


def _whole(vectors: RunningMoments, keep: int, covariance: bool) -> dict[str, Variable]:
    matrix = vectors.covariance
    values = spectrum(matrix)
    width = values.shape[-1]
    bias = entropy_bias(vectors.count, width)
    variables: dict[str, Variable] = _of_spectrum(values, "") | {
        "entropy_bias": (
            (),
            bias,
            attributes("what so few vectors add to the entropy of a full-rank Gaussian: subtract it", "nat", against=0),
        ),
        "spectrum": (
            ("component",),
            values[..., : min(keep, width)],
            attributes("leading eigenvalues of the covariance", SQUARE, against=0),
        ),
        "variance": (
            ("feature",),
            np.diagonal(matrix, axis1=-2, axis2=-1),
            attributes("variance of each coordinate", SQUARE),
        ),
    }
    if covariance and width <= WHOLE:
        variables["covariance"] = (("feature", "feature_other"), matrix, attributes("covariance", SQUARE))
    elif covariance:
        directions = np.swapaxes(np.linalg.eigh(matrix)[1][..., ::-1][..., :keep], -1, -2)
        variables["directions"] = _directions(directions)
    return variables


def _of_spectrum(values: Floats, prefix: str) -> dict[str, Variable]:
    """What the eigenvalues of a whole covariance tell."""
    of = " of the bulk" if prefix else ""
    return {
        f"{prefix}trace": ((), values.sum(axis=-1), attributes(f"trace of the covariance{of}", SQUARE)),
        f"{prefix}effective_rank": (
            (),
            effective_rank(values),
            attributes(f"effective rank exp(H(lambda/trace)){of}", "dimensions"),
        ),
        f"{prefix}anisotropy": ((), anisotropy(values), attributes(f"share of the leading eigenvalue{of}", "1")),
        f"{prefix}rank": ((), rank(values), attributes(f"numerical rank of the covariance{of}", "dimensions", 0)),
        f"{prefix}entropy": (
            (),
            support_entropy(values),
            attributes(f"Gaussian entropy within the support of that rank{of}", "nat"),
        ),
    }


def _sketched(vectors: RunningSketch, keep: int, prefix: str = "") -> dict[str, Variable]:
    found = vectors.covariance(keep)
    trace = vectors.variance.sum()
    share = found.eigenvalues[0] / trace if trace > 0 else 0.0
    of = " of the bulk" if prefix else ""
    error = f"no eigenvalue{of} is more than this above what is given"
    rest = f"variance of each coordinate{of} that the directions do not hold"
    made: dict[str, Variable] = {
        "trace": ((), trace, attributes(f"trace of the covariance{of}", SQUARE)),
        "anisotropy": ((), share, attributes(f"share of the leading eigenvalue{of}, from below", "1")),
        "spectrum": (
            ("component",),
            found.eigenvalues,
            attributes(f"leading eigenvalues of the covariance{of}, from below", SQUARE, against=0),
        ),
        "sketch_error": ((), found.error, attributes(error, SQUARE, against=0)),
        "variance": (("feature",), vectors.variance, attributes(f"variance of each coordinate{of}", SQUARE)),
        "directions": _directions(found.directions),
        "rest": (("feature",), found.rest, attributes(rest, SQUARE)),
    }
    return {f"{prefix}{name}": variable for name, variable in made.items()}


def _directions(rows: Floats) -> Variable:
    text = "leading eigenvectors of the covariance; their signs mean nothing"
    return (("component", "feature"), rows, attributes(text, "1"))


def _lengths(first: First) -> dict[str, Variable]:
    many, share = first.lengths.extremes()
    apart = first.apart.mean if first.apart.count else np.full_like(first.lengths.mean, np.nan)
    return {
        "length_mean": ((), first.lengths.mean, attributes("mean length of the vectors", "activation")),
        "length_sd": ((), first.lengths.sd, attributes("spread of the length", "activation")),
        "extremes": ((), many, attributes("vectors longer than 8 times the median length", "tokens", against=0)),
        "extreme_share": ((), share, attributes("share of the energy that these vectors hold", "1", against=0)),
        "owned": ((), share > OWNED, attributes("a few extreme vectors own the covariance", "1")),
        "apart_count": ((), np.int64(first.apart.count), attributes("vectors left out", "tokens", against=0)),
        "apart_length_mean": (
            (),
            apart,
            attributes("mean length of the vectors left out (NaN: there were none)", "activation", against=0),
        ),
    }


def _shape(first: First) -> dict[str, Variable]:
    skewness, kurtosis, count = first.shape.skewness, first.shape.kurtosis, first.shape.count
    p = normality_p(skewness, kurtosis, count)
    mean, sd = kurtosis_law(count)
    along = ("projection",)
    where = "along each of 64 fixed random directions"
    return {
        "skewness": (along, skewness, attributes(f"skewness {where}", "1", against=0)),
        "kurtosis": (along, kurtosis, attributes(f"excess kurtosis {where}", "1", against=0)),
        "normality_p": (along, p, attributes(f"p {where} under a Gaussian", "1", against=0)),
        "kurtosis_mean": ((), kurtosis.mean(axis=-1), attributes("mean excess kurtosis, random directions", "1")),
        "not_normal": (
            (),
            np.where(np.isnan(p).any(axis=-1), np.nan, np.mean(p < 0.05, axis=-1)),
            attributes("share of random directions with p below 0.05; of a Gaussian 0.05 (NaN: under 20 vectors)", "1"),
        ),
        "skewness_null_sd": ((), skewness_sd(count), attributes("sd of the skewness of a Gaussian", "1", against=0)),
        "kurtosis_null_mean": ((), mean, attributes("mean excess kurtosis of a Gaussian", "1", against=0)),
        "kurtosis_null_sd": ((), sd, attributes("sd of the excess kurtosis of a Gaussian", "1", against=0)),
    }


def _robust(inside: Sequence[Vectors], count: int, keep: int, covariance: bool, heads: bool) -> dict[str, Variable]:
    def each(values: list[Any]) -> Any:
        return np.stack(values) if heads else values[0]

    means = each([state.mean for state in inside])
    left_out = each([1 - state.count / count for state in inside])
    variables: dict[str, Variable] = {
        "outlier_share": ((), left_out, attributes("share of the vectors that are not of the bulk", "1")),
        "robust_mean": (("feature",), means, attributes("mean vector of the bulk", "activation")),
    }
    if isinstance(inside[0], RunningSketch):
        return variables | _sketched(inside[0], keep, "robust_")
    matrices = each([state.covariance for state in inside])
    values = spectrum(matrices)
    text = "leading eigenvalues of the covariance of the bulk"
    variables |= _of_spectrum(values, "robust_")
    variables["robust_spectrum"] = (("component",), values[..., :keep], attributes(text, SQUARE, against=0))
    if covariance and values.shape[-1] <= WHOLE:
        text = "covariance of the bulk"
        variables["robust_covariance"] = (("feature", "feature_other"), matrices, attributes(text, SQUARE))
    return variables
