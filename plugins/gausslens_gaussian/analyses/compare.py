"""gaussian.compare and gaussian.between-layers: how far fitted Gaussians are from each other, from stored moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from gausslens import Context, InputError, StepRef, variable
from gausslens.maths.moments import Floats

from ..maths.geometry import leading, principal_angles
from ..maths.information import frechet_distance, in_axes_of, jensen_shannon_in_axes, kl_in_axes
from ..maths.information_from_samples import corrected_kl_in_axes, kl_of_equals
from ..maths.shape_distances import (
    correlation_distance,
    covariance_cosine,
    mean_shift,
    of_equals,
    scale_log_ratio,
    shape_distances,
)

if TYPE_CHECKING:
    from ..parameters import BetweenLayersParameters, CompareParameters

MOMENTS = "gaussian.moments"
# With fewer vectors for each dimension than this, the least eigenvalue of a sample covariance is under half (0.47) of
# the true one (Marchenko and Pastur), and a divergence is off by more than d/20 nats.
FEW = 10
# Of log 2: a Jensen-Shannon divergence above says only that the two can be told apart.
SATURATED = 0.99


class Compare:
    """Reads the stored means and covariances of two variants and measures between them."""

    def __init__(self, parameters: CompareParameters, context: Context) -> None:
        self.parameters = parameters
        self.measure = Measure("gaussian.compare", parameters, context)

    def inputs(self, steps: Sequence[StepRef]) -> list[StepRef]:
        """The moments of both variants, all draws."""
        of, between = self.parameters.of, self.parameters.between
        found = [s for s in steps if s.label == of and s.variant in between]
        _check_label("gaussian.compare", of, steps)
        for variant in between:
            mine = [s for s in found if s.variant == variant]
            if not mine:
                raise InputError(f"gaussian.compare: {of!r} is not computed on the variant {variant!r}")
            if any(s.sweep for s in mine):
                raise InputError(f"gaussian.compare: {variant!r} is swept; name a variant without a sweep")
            if mine[0].analysis != MOMENTS:
                raise InputError(f"gaussian.compare: {of!r} is {mine[0].analysis}, not {MOMENTS}")
        return found

    def compute(self, inputs: Mapping[StepRef, xr.Dataset]) -> xr.Dataset:
        """Divergences for each layer and head, with a draw dimension where a variant has draws."""
        left, right = (
            {ref.draw: data for ref, data in inputs.items() if ref.variant == v} for v in self.parameters.between
        )
        draws = sorted(d for d in {*left, *right} if d is not None)
        if not draws:
            return _with_warnings(self._pair(left[None], right[None]))
        paired = [d for d in draws if (None in left or d in left) and (None in right or d in right)]
        parts = [self._pair(left.get(d, left.get(None)), right.get(d, right.get(None))) for d in paired]
        return _with_warnings(xr.concat(parts, dim=xr.DataArray(np.array(paired), dims="draw", name="draw")))

    def _pair(self, p: xr.Dataset | None, q: xr.Dataset | None) -> xr.Dataset:
        assert p is not None
        assert q is not None
        return self.measure.between(p, q, *self.parameters.between).assign_attrs(of=self.parameters.of)


class BetweenLayers:
    """Measures between the layers of one variant, or between two sites at the same layer."""

    def __init__(self, parameters: BetweenLayersParameters, context: Context) -> None:
        self.parameters = parameters
        self.measure = Measure("gaussian.between-layers", parameters, context)

    def inputs(self, steps: Sequence[StepRef]) -> list[StepRef]:
        """The moments of the labels named."""
        labels = [self.parameters.of] + ([self.parameters.to] if self.parameters.to else [])
        for label in labels:
            _check_label("gaussian.between-layers", label, steps)
        found = [next((s for s in steps if s.label == label), None) for label in labels]
        wrong = [s for s in found if s is not None and s.analysis != MOMENTS]
        if wrong:
            raise InputError(f"gaussian.between-layers: {wrong[0].label!r} is {wrong[0].analysis}, not {MOMENTS}")
        return [s for s in found if s is not None]

    def compute(self, inputs: Mapping[StepRef, xr.Dataset]) -> xr.Dataset:
        """Divergences [layer] of each layer from the next, [layer, layer_other] of all, or of two sites."""
        return _with_warnings(self._measured({ref.label: data for ref, data in inputs.items()}))

    def _measured(self, by_label: Mapping[str, xr.Dataset]) -> xr.Dataset:
        p = by_label[self.parameters.of]
        if self.parameters.to:
            return self.measure.between(p, by_label[self.parameters.to], self.parameters.of, self.parameters.to)
        if "layer" not in p.dims or p.sizes["layer"] < 2:
            raise InputError(f"gaussian.between-layers: {self.parameters.of!r} has fewer than two layers")
        layers = p["layer"].values
        if self.parameters.pairs == "next":
            after = p.isel(layer=slice(1, None)).assign_coords(layer=layers[:-1])
            return self.measure.between(p.isel(layer=slice(None, -1)), after, "layer", "the next")
        columns = [
            self.measure.between(p, p.isel(layer=[i] * len(layers)).assign_coords(layer=layers), "layer", "layer_other")
            for i in range(len(layers))
        ]
        return xr.concat(columns, dim=xr.DataArray(layers, dims="layer_other", name="layer_other"))


class _Fit(NamedTuple):
    """The Gaussian of one cell, and how many vectors it is of."""

    mean: Floats
    covariance: Floats
    vectors: int


class Measure:
    """All distances between Gaussians, cell by cell: plain, corrected for the number of vectors, matched in scale."""

    def __init__(self, name: str, parameters: CompareParameters | BetweenLayersParameters, context: Context) -> None:
        self.name, self.of = name, parameters.of
        self.angles, self.draws, self.fit = parameters.angles, parameters.draws, parameters.fit
        self.equals, self.context = parameters.equals, context

    def between(self, p: xr.Dataset, q: xr.Dataset, first: str, second: str) -> xr.Dataset:
        """The measures of each layer and head of p and q; ``first`` and ``second`` are what to call them."""
        prefix = "robust_" if self.fit == "robust" else ""
        for data in (p, q):
            self._check(data, prefix)
        covariances = [data[f"{prefix}covariance"] for data in (p, q)]
        lead = tuple(str(dim) for dim in covariances[0].dims[:-2])
        if covariances[0].shape != covariances[1].shape:
            raise InputError(
                f"{self.name}: {first} has {covariances[0].shape}, {second} has {covariances[1].shape}: not alike"
            )
        fits = [_fits(data, prefix) for data in (p, q)]
        rng, equals = self.context.generator("divergence"), self.context.generator("equals")
        cells = [self._cell(one, other, rng, equals) for one, other in zip(*fits, strict=True)]
        width = covariances[0].shape[-1]
        variables: dict[str, Any] = {}
        for name in cells[0]:
            text, units, against = _TEXTS[name]
            values = np.array([cell[name] for cell in cells])
            dims = lead if values.ndim == 1 else (*lead, "component")
            shaped = values.reshape(*covariances[0].shape[:-2], *values.shape[1:])
            variables[name] = variable(dims, shaped, text.format(p=first, q=second), units, against)
        coords = {d: p[d] for d in lead} | {"component": np.arange(min(self.angles, width))}
        return xr.Dataset(variables, coords=coords).assign_attrs(fit=self.fit)

    def _cell(
        self, p: _Fit, q: _Fit, rng: np.random.Generator, equals: np.random.Generator
    ) -> dict[str, float | Floats]:
        pq, counts = (p.mean, p.covariance, q.mean, q.covariance), (p.vectors, q.vectors)
        covariances, width = (p.covariance, q.covariance), len(p.mean)
        forth, back = in_axes_of(*pq), in_axes_of(*pq[2:], *pq[:2])
        divergence, distance = jensen_shannon_in_axes(forth, self.draws, rng), frechet_distance(*pq)
        size = np.sqrt((np.trace(p.covariance) + np.trace(q.covariance)) / 2)
        shapes = shape_distances(*covariances, *counts)
        count = min(self.angles, width)
        found: dict[str, float | Floats] = {
            "kl": kl_in_axes(forth),
            "kl_reverse": kl_in_axes(back),
            "jensen_shannon": divergence.value,
            "jensen_shannon_se": divergence.standard_error,
            "frechet": distance,
            "frechet_relative": distance / size if size > 0 else 0.0,
            "angles": principal_angles(*(leading(covariance, count) for covariance in covariances)),
            "kl_corrected": corrected_kl_in_axes(forth, width, *counts),
            "kl_reverse_corrected": corrected_kl_in_axes(back, width, *counts[::-1]),
            "kl_of_equals": kl_of_equals(*counts, width),
            "kl_reverse_of_equals": kl_of_equals(*counts[::-1], width),
            "scale_log_ratio": scale_log_ratio(*covariances),
            "mean_shift": mean_shift(*pq, *counts),
            "shape_distance": shapes.shape,
            "spectrum_distance": shapes.spectrum,
            "shape_divergence": shapes.divergence,
            "correlation_distance": correlation_distance(*covariances),
            "covariance_cosine": covariance_cosine(*covariances, *counts),
            "vectors_per_dimension": min(counts) / width,
        }
        if np.array_equal(p.mean, q.mean) and np.array_equal(*covariances):
            # One fit, found twice (an unedited layer): there is no noise between the two that could be subtracted.
            found |= dict.fromkeys(("kl_corrected", "kl_reverse_corrected", "mean_shift"), 0.0)
            found["covariance_cosine"] = 1.0
        if self.equals:
            floor = of_equals(*covariances, *counts, self.equals, equals)
            found |= {f"{name}_of_equals": value for name, value in floor._asdict().items()}
        return found

    def _check(self, data: xr.Dataset, prefix: str) -> None:
        if f"{prefix}covariance" in data:
            return
        if prefix and "covariance" in data:
            raise InputError(
                f"{self.name}: {self.of!r} has no robust fit: that needs `robust: true` among its parameters"
            )
        raise InputError(
            f"{self.name}: {self.of!r} kept no whole covariance: that needs d <= 1024 and `covariance: true` among its "
            "parameters"
        )


_KL = "D({p} || {q})"
_REVERSE = "D({q} || {p})"
_FLOOR = "what equal Gaussians of so many independent vectors give on average for the "
# Of each variable: what it is, its units, and whether it is compared with a null (None: by the host's rule).
_TEXTS: dict[str, tuple[str, str, bool | None]] = {
    "kl": (_KL, "nat", None),
    "kl_reverse": (_REVERSE, "nat", None),
    "jensen_shannon": ("Jensen-Shannon divergence of {p} and {q}", "nat", None),
    "jensen_shannon_se": ("standard error of the Jensen-Shannon divergence", "nat", None),
    "frechet": ("Frechet distance of {p} and {q}", "activation", None),
    "frechet_relative": ("Frechet distance of {p} and {q} over the root of their mean trace", "1", None),
    "angles": ("principal angles between the leading subspaces of {p} and {q}", "rad", False),
    "kl_corrected": (f"{_KL}, unbiased: corrected for the number of vectors (NaN: too few)", "nat", None),
    "kl_reverse_corrected": (f"{_REVERSE}, unbiased: corrected for the number of vectors (NaN: too few)", "nat", None),
    "kl_of_equals": (f"{_KL} of equal Gaussians fitted to so many independent vectors", "nat", False),
    "kl_reverse_of_equals": (f"{_REVERSE} of equal Gaussians fitted to so many independent vectors", "nat", False),
    "scale_log_ratio": ("log of how many times wider {p} is than {q} (roots of the traces)", "nat", None),
    "mean_shift": ("squared distance of the means of {p} and {q}, each over its root trace, unbiased", "1", None),
    "shape_distance": ("Bures distance of the covariances of {p} and {q} at trace 1: 0 to 1.41", "1", None),
    "spectrum_distance": ("the same after the best rotation: how far their spectra are apart", "1", None),
    "shape_divergence": (
        "mean of both divergences of {p} and {q} at trace 1, shrunken, per dimension, without means",
        "nat",
        None,
    ),
    "correlation_distance": ("Bures distance of the correlation matrices of {p} and {q}: 0 to 1.41", "1", None),
    "covariance_cosine": ("cosine of the covariances of {p} and {q}, corrected: 1 for equal shapes", "1", None),
    "vectors_per_dimension": ("vectors for each dimension, of the smaller side", "1", False),
    "shape_of_equals": (f"{_FLOOR}shape distance", "1", False),
    "spectrum_of_equals": (f"{_FLOOR}spectrum distance", "1", False),
    "divergence_of_equals": (f"{_FLOOR}shape divergence", "nat", False),
    "correlation_of_equals": (f"{_FLOOR}correlation distance", "1", False),
}


def _fits(data: xr.Dataset, prefix: str) -> list[_Fit]:
    """The Gaussians of all cells; a robust one is of the vectors that are not left out."""
    covariances = data[f"{prefix}covariance"]
    cells = covariances.isel(dict.fromkeys(covariances.dims[-2:], 0), drop=True)
    kept = data["count"] * (1 - data["outlier_share"]) if prefix else data["count"]
    counts = np.rint(kept.broadcast_like(cells).transpose(*cells.dims).values).astype(int).ravel()
    width = covariances.shape[-1]
    means = data[f"{prefix}mean"].values.reshape(-1, width)
    matrices = covariances.values.reshape(-1, width, width)
    return [_Fit(mean, matrix, int(count)) for mean, matrix, count in zip(means, matrices, counts, strict=True)]


def _with_warnings(dataset: xr.Dataset) -> xr.Dataset:
    """The number of vectors for each dimension, and warnings: where they are few, and where a divergence saturates."""
    vectors = dataset["vectors_per_dimension"]
    least = float(vectors.min())
    told = []
    if least < FEW:
        text = f"{int((vectors < FEW).sum())} of {vectors.size} cells have fewer than {FEW} vectors for each dimension "
        text += f"(the least {least:.2g}): there a covariance is of the sample as much as of the model, and equal "
        text += f"Gaussians would give D up to {float(dataset['kl_of_equals'].max()):.3g} nats. Read the corrected and "
        text += (
            "the shrunken distances, beside what equal ones give (*_of_equals). Vectors count as independent; those "
        )
        told.append(text + "of one prompt are not, so that there are fewer still")
    most = int((dataset["jensen_shannon"] > SATURATED * np.log(2)).sum())
    if most:
        text = f"the Jensen-Shannon divergence is at its most, log 2, in {most} of {dataset['jensen_shannon'].size} "
        text += "cells, which tells nothing apart: kl and it say how sure, shape_distance and scale_log_ratio how far"
        told.append(text)
    attrs: dict[str, Any] = {"vectors_for_each_dimension": least}
    return dataset.assign_attrs(attrs | ({"warning": "; ".join(told)} if told else {}))


def _check_label(name: str, label: str, steps: Sequence[StepRef]) -> None:
    labels = sorted({s.label for s in steps if s.analysis == MOMENTS})
    if label not in labels and (labels or label not in {s.label for s in steps}):
        known = ", ".join(labels) or "none at all"
        raise InputError(f"{name}: no gaussian.moments step has the label {label!r}; there are {known}")
