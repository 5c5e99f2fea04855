"""bilinear.noise: matrices of independent entries, drawn, beside the law of their shape and the published one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, LayerWeights, ModelError, ModelInfo, Tokens, variable
from gausslens.maths.laws import RATE, MarchenkoPastur
from gausslens.maths.spectra import squared_singular_values

from .spectrum import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..parameters import NoiseParameters

_SQUARE = "squared weight"
_MEASURES = {
    "law_lower": ("lower edge of the law of this shape", _SQUARE),
    "law_upper": ("upper edge of the law of this shape", _SQUARE),
    "law_distance": ("Kolmogorov distance of a draw to the law of its shape, mean", "1"),
    "published_upper": ("upper edge that Wertich (2024), 2.4, gives: 4 times the variance of an entry", _SQUARE),
    "published_distance": ("Kolmogorov distance of a draw to the law of that scale, mean", "1"),
    "maximum": ("largest squared singular value, mean over draws", _SQUARE),
    "maximum_sd": ("its standard deviation over draws", _SQUARE),
    "maximum_law_mean": ("largest squared singular value by Tracy and Widom's law: mean", _SQUARE),
    "maximum_law_sd": ("and its standard deviation", _SQUARE),
    "sum": ("sum of the squared singular values, mean over draws", _SQUARE),
    "sum_law": ("and by the law: rows times columns times the variance of an entry", _SQUARE),
    "beyond": (f"share of draws with a value above the level that noise exceeds with chance {RATE}", "1"),
}


class Noise:
    """Draws Gaussian matrices of Glorot's variance 2/(rows + columns), of given sizes or the model's own."""

    def __init__(self, parameters: NoiseParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:  # noqa: ARG002
        """The sizes of a layer's matrices; no tensor is read where sizes are given."""
        if self.parameters.sizes:
            return xr.Dataset()
        names = [n for n in ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out") if n in weights]
        sizes = [whole(n, weights[n].detach().cpu().numpy()).shape for n in names]
        return xr.Dataset({"sizes": (("matrix", "side"), np.array(sizes, dtype=int).reshape(-1, 2))})

    def join(self, layers: Mapping[int, xr.Dataset]) -> xr.Dataset:
        """Each size once, in the order given, or as the layers have them."""
        own = [layers[n]["sizes"].values for n in sorted(layers) if "sizes" in layers[n]]
        found = [(int(rows), int(columns)) for sizes in own for rows, columns in sizes]
        sizes = list(dict.fromkeys(self.parameters.sizes or found))
        if not sizes:
            raise ModelError(f"no layer of {self.context.model.name} has a matrix: give sizes, as [[1024, 1024]]")
        return _variables(sizes, [self._drawn(rows, columns) for rows, columns in sizes])

    def _drawn(self, rows: int, columns: int) -> tuple[NDArray[np.float64], dict[str, float]]:
        """The squared singular values of the first draw, and what all draws say."""
        generator, variance = self.context.generator(f"{rows} x {columns}"), 2 / (rows + columns)
        draws = np.stack(
            [
                squared_singular_values(generator.normal(scale=np.sqrt(variance), size=(rows, columns)))
                for _ in range(self.parameters.samples)
            ]
        )
        law = MarchenkoPastur(rows, columns, variance)
        # The density of 2.4 has the variance of an entry where a square has n times that.
        published = MarchenkoPastur(rows, columns, variance / max(rows, columns))
        largest = draws[:, 0]
        centre, sd = law.largest
        return draws[0], {
            "law_lower": law.edges[0],
            "law_upper": law.edges[1],
            "law_distance": float(np.mean([law.distance(squared) for squared in draws])),
            "published_upper": 4 * variance,
            "published_distance": float(np.mean([published.distance(squared) for squared in draws])),
            "maximum": float(largest.mean()),
            "maximum_sd": float(largest.std(ddof=1)),
            "maximum_law_mean": centre,
            "maximum_law_sd": sd,
            "sum": float(draws.sum(axis=1).mean()),
            "sum_law": rows * columns * variance,
            "beyond": float((largest > law.level()).mean()),
        }


def _variables(
    sizes: Sequence[tuple[int, int]], made: Sequence[tuple[NDArray[np.float64], dict[str, float]]]
) -> xr.Dataset:
    longest = max(len(squared) for squared, _ in made)
    padded = np.stack([np.pad(s, (0, longest - len(s)), constant_values=np.nan) for s, _ in made])
    variables: dict[str, Any] = {
        "squared": variable(
            ("size", "feature"), padded, "squared singular values of one draw, largest first", _SQUARE, against=False
        )
    }
    for i, what in enumerate(("rows", "columns")):
        values = np.array([size[i] for size in sizes])
        variables[what] = variable("size", values, f"{what} of the matrix", against=False)
    for name, (long_name, units) in _MEASURES.items():
        values = np.array([found[name] for _, found in made])
        variables[name] = variable("size", values, long_name, units, against=False)
    names = [f"{rows} x {columns}" for rows, columns in sizes]
    return xr.Dataset(variables, coords={"size": names, "feature": np.arange(longest)})


def estimate(parameters: NoiseParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: one draw with its Gram matrix, and the values of all; disk: the values of one."""
    own = (info.d_model, info.d_mlp or info.d_model)
    rows, columns = max(parameters.sizes or (own,), key=lambda size: size[0] * size[1])
    small, count = min(rows, columns), len(parameters.sizes or (own,))
    # A Gram matrix takes rows x columns x small multiplications, its values some 4/3 small^3, at 1e10 a second.
    seconds = count * parameters.samples * (rows * columns * small + 1.4 * small**3) / 1e10
    held = 8 * (rows * columns + 2 * small**2 + parameters.samples * small)
    return Estimate(memory=held, disk=8 * count * (small + 16), seconds=seconds)
