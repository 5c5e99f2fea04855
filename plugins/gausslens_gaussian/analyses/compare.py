"""gaussian.compare and gaussian.between-layers: how far fitted Gaussians are from each other, from stored moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, InputError, StepRef, variable
from gausslens.maths.moments import Floats

from ..maths.geometry import leading, principal_angles
from ..maths.information import frechet_distance, gaussian_kl, jensen_shannon

if TYPE_CHECKING:
    from ..parameters import BetweenLayersParameters, CompareParameters

MOMENTS = "gaussian.moments"


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
            return self._pair(left[None], right[None])
        paired = [d for d in draws if (None in left or d in left) and (None in right or d in right)]
        parts = [self._pair(left.get(d, left.get(None)), right.get(d, right.get(None))) for d in paired]
        return xr.concat(parts, dim=xr.DataArray(np.array(paired), dims="draw", name="draw"))

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
        by_label = {ref.label: data for ref, data in inputs.items()}
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


class Measure:
    """Kullback-Leibler both ways, Jensen-Shannon, Frechet distance and principal angles, cell by cell."""

    def __init__(self, name: str, parameters: CompareParameters | BetweenLayersParameters, context: Context) -> None:
        self.name, self.context = name, context
        self.angles, self.draws, self.fit = parameters.angles, parameters.draws, parameters.fit
        self.of = parameters.of

    def between(self, p: xr.Dataset, q: xr.Dataset, first: str, second: str) -> xr.Dataset:
        """The measures of each layer and head of p and q; ``first`` and ``second`` are what to call them."""
        prefix = "robust_" if self.fit == "robust" else ""
        for data in (p, q):
            self._check(data, prefix)
        covariance = p[f"{prefix}covariance"]
        lead = tuple(str(dim) for dim in covariance.dims[:-2])
        arrays = [data[f"{prefix}{what}"].values for data in (p, q) for what in ("mean", "covariance")]
        if arrays[1].shape != arrays[3].shape:
            raise InputError(f"{self.name}: {first} has {arrays[1].shape}, {second} has {arrays[3].shape}: not alike")
        shape, width = arrays[1].shape[:-2], arrays[1].shape[-1]
        found: dict[str, Floats] = {name: np.empty(shape) for name in _TEXTS}
        found["angles"] = np.empty((*shape, min(self.angles, width)))
        rng = self.context.generator("divergence")
        for index in np.ndindex(*shape):
            self._cell([a[index] for a in arrays], rng, found, index)
        variables: dict[str, Any] = {
            name: variable(lead, found[name], text.format(p=first, q=second), units)
            for name, (text, units) in _TEXTS.items()
        }
        text = f"principal angles between the leading subspaces of {first} and {second}"
        variables["angles"] = variable((*lead, "component"), found["angles"], text, "rad", against=False)
        few = min(int(data["count"].min()) for data in (p, q) if "count" in data) if "count" in p else 0
        dataset = xr.Dataset(
            variables, coords={d: p[d] for d in lead} | {"component": np.arange(min(self.angles, width))}
        )
        return dataset.assign_attrs(fit=self.fit, vectors_for_each_dimension=few / width)

    def _cell(
        self, pq: list[Floats], rng: np.random.Generator, found: dict[str, Floats], index: tuple[int, ...]
    ) -> None:
        mean_p, cov_p, mean_q, cov_q = pq
        found["kl"][index] = gaussian_kl(*pq)
        found["kl_reverse"][index] = gaussian_kl(mean_q, cov_q, mean_p, cov_p)
        found["jensen_shannon"][index], found["jensen_shannon_se"][index] = jensen_shannon(
            mean_p, cov_p, mean_q, cov_q, self.draws, rng
        )
        found["frechet"][index] = frechet_distance(*pq)
        size = np.sqrt((np.trace(cov_p) + np.trace(cov_q)) / 2)
        found["frechet_relative"][index] = found["frechet"][index] / size if size > 0 else 0.0
        count = found["angles"].shape[-1]
        found["angles"][index] = principal_angles(leading(cov_p, count), leading(cov_q, count))

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


_TEXTS = {
    "kl": ("D({p} || {q})", "nat"),
    "kl_reverse": ("D({q} || {p})", "nat"),
    "jensen_shannon": ("Jensen-Shannon divergence of {p} and {q}", "nat"),
    "jensen_shannon_se": ("standard error of the Jensen-Shannon divergence", "nat"),
    "frechet": ("Frechet distance of {p} and {q}", "activation"),
    "frechet_relative": ("Frechet distance of {p} and {q} over the root of their mean trace", "1"),
}


def _check_label(name: str, label: str, steps: Sequence[StepRef]) -> None:
    labels = sorted({s.label for s in steps if s.analysis == MOMENTS})
    if label not in labels and (labels or label not in {s.label for s in steps}):
        known = ", ".join(labels) or "none at all"
        raise InputError(f"{name}: no gaussian.moments step has the label {label!r}; there are {known}")
