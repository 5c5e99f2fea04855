"""reinit.check: what the matrices of a variant keep of the model's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from gausslens import Context, LayerWeights, ModelError, variable
from gausslens.maths.heads import as_matrices

from ..maths.claims import broken_claim, multiset, spectra

if TYPE_CHECKING:
    from ..parameters import CheckParameters

# name: long_name. Each is 0 where nothing changed, save those that say otherwise. None is called as a parameter of an
# edit, as rank would: swept values are dimensions of that name.
MEASURES = {
    "moved": "share of entries that differ",
    "mean_change": "change of the mean, in standard deviations of the entries",
    "variance_change": "change of the variance, as a share of it",
    "energy_change": "change of the sum of squares, as a share of it",
    "values_kept": "1 where the entries are the same, in whatever places",
    "spectrum_change": "largest change of a singular value of the whole matrix, as a share of the largest",
    "head_spectrum_change": "largest change of a singular value of a head's block, as a share of its largest",
    "correlation": "correlation of entries with those at the same places; 1 where nothing changed",
    "zeros": "share of entries that are 0",
    "matrix_rank": "singular values of the whole matrix above a millionth of the largest",
}


class Check:
    """Reads one layer at a time, with and without edits; needs no prompts."""

    def __init__(self, parameters: CheckParameters, context: Context) -> None:
        self.parameters = parameters
        self.heads = context.model.heads

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        """What each matrix of one layer keeps; NaN for those that it does not have."""
        base = weights.base(layer)
        found = {name: np.full(len(self.parameters.matrices), np.nan) for name in MEASURES}
        for place, name in enumerate(self.parameters.matrices):
            if name not in weights:
                continue
            before, after = base[name], weights[name]
            lost = broken_claim(name, before, after, self.parameters.claims)
            if lost:
                raise ModelError(f"{name} does not keep its {lost}")
            for measure, value in measured(name, before, after).items():
                found[measure][place] = value
        # What a null keeps to rounding has rounding for its spread, from which everything is far: no `against`.
        variables = {name: variable("tensor", values, MEASURES[name], against=False) for name, values in found.items()}
        return xr.Dataset(variables, {"tensor": list(self.parameters.matrices)})


def measured(name: str, before: torch.Tensor, after: torch.Tensor) -> dict[str, float]:
    """What a tensor keeps of another; see MEASURES."""
    x, y = (as_matrices(name, t, "matrix").flatten() for t in (before, after))
    whole = [spectra(name, t, "matrix") for t in (before, after)]
    heads = [spectra(name, t, "head") for t in (before, after)]
    of_x, of_y = x.var(correction=0), y.var(correction=0)
    both = (of_x * of_y).sqrt()
    pairs = {
        "moved": (x != y).double().mean(),
        "mean_change": (y.mean() - x.mean()) / of_x.sqrt(),
        "variance_change": (of_y - of_x) / of_x,
        "energy_change": (y.square().sum() - x.square().sum()) / x.square().sum(),
        "spectrum_change": _largest_change(*whole),
        "head_spectrum_change": _largest_change(*heads),
        # A matrix of equal entries correlates with nothing.
        "correlation": ((x - x.mean()) * (y - y.mean())).mean() / both if both > 0 else torch.tensor(0.0),
        "zeros": (y == 0).double().mean(),
        "matrix_rank": (whole[1] > 1e-6 * whole[1][:, :1]).sum(),
    }
    return {**{n: float(v) for n, v in pairs.items()}, "values_kept": float(multiset(before) == multiset(after))}


def _largest_change(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    return ((after - before).abs().amax(-1) / before[:, 0]).max()
