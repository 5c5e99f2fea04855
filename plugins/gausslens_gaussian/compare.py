"""gaussian.compare: how far the Gaussians of one variant are from those of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, InputError, StepRef

from .information import frechet, kl

if TYPE_CHECKING:
    from .parameters import CompareParameters

Measure = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], float]


class Compare:
    """Reads the stored means and covariances of two variants and measures between them."""

    def __init__(self, parameters: CompareParameters, context: Context) -> None:  # noqa: ARG002
        self.parameters = parameters

    def inputs(self, steps: Sequence[StepRef]) -> list[StepRef]:
        """The moments of both variants, all draws."""
        of, between = self.parameters.of, self.parameters.between
        found = [s for s in steps if s.label == of and s.variant in between]
        labels = sorted({s.label for s in steps if s.analysis == "gaussian.moments"})
        if labels and of not in labels:
            raise InputError(
                f"gaussian.compare: no gaussian.moments step has the label {of!r}; there are {', '.join(labels)}"
            )
        for variant in between:
            mine = [s for s in found if s.variant == variant]
            if not mine:
                raise InputError(f"gaussian.compare: {of!r} is not computed on the variant {variant!r}")
            if any(s.sweep for s in mine):
                raise InputError(f"gaussian.compare: {variant!r} is swept; name a variant without a sweep")
            if mine[0].analysis != "gaussian.moments":
                raise InputError(f"gaussian.compare: {of!r} is {mine[0].analysis}, not gaussian.moments")
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
        if "covariance" not in p or "covariance" not in q:
            raise InputError(
                f"gaussian.compare: {self.parameters.of!r} kept no whole covariance: that needs d <= 1024 and "
                "`covariance: true` among its parameters"
            )
        first, second = self.parameters.between
        measures: dict[str, tuple[Measure, str, str]] = {
            "kl": (kl, f"D({first} || {second})", "nat"),
            "kl_reverse": (lambda mp, cp, mq, cq: kl(mq, cq, mp, cp), f"D({second} || {first})", "nat"),
            "frechet": (frechet, f"Frechet distance of {first} and {second}", "activation"),
        }
        lead = p["covariance"].dims[:-2]
        arrays = [a.values for a in (p["mean"], p["covariance"], q["mean"], q["covariance"])]
        shape = arrays[1].shape[:-2]
        variables: dict[str, Any] = {}
        for name, (measure, long_name, units) in measures.items():
            found = np.empty(shape)
            for index in np.ndindex(*shape):
                found[index] = measure(*(a[index] for a in arrays))
            variables[name] = (lead, found, {"long_name": long_name, "units": units})
        return xr.Dataset(variables, coords={d: p[d] for d in lead}, attrs={"of": self.parameters.of})
