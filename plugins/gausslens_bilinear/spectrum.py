"""bilinear.spectrum: squared singular values of each layer's matrices, beside the law of noise of their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, LayerWeights, ModelError, ModelInfo, Tokens

from .laws import MarchenkoPastur
from .singular import effective_rank, squared_singular_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .parameters import SpectrumParameters

# Attention's matrices carry heads on their first axis; the MLP's do not.
_HEAD_OF = {"W_Q": "head", "W_O": "head", "W_K": "kv_head", "W_V": "kv_head"}
_SQUARE = "squared weight"
# name: long_name, units, attributes for the comparison with a null (0: leave out)
_MEASURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mean": ("mean squared singular value", _SQUARE, {}),
    "maximum": ("largest squared singular value", _SQUARE, {}),
    "sum": ("sum of the squared singular values: their mean, times their number", _SQUARE, {"against": 0}),
    "effective_rank": ("effective rank exp(H(shares))", "dimensions", {}),
    "distance": ("Kolmogorov distance to the Marchenko-Pastur law", "1", {}),
    "beyond": ("squared singular values that noise exceeds once in a hundred matrices", "values", {}),
    "variance": ("variance of the entries", _SQUARE, {"against": 0}),
    "rows": ("rows of the matrix", "1", {"against": 0}),
    "columns": ("columns of the matrix", "1", {"against": 0}),
    "law_lower": ("lower edge of the law", _SQUARE, {"against": 0}),
    "law_upper": ("upper edge of the law", _SQUARE, {"against": 0}),
    "maximum_law_mean": ("largest squared singular value of noise: mean", _SQUARE, {"against": 0}),
    "maximum_law_sd": ("largest squared singular value of noise: standard deviation", _SQUARE, {"against": 0}),
    "maximum_law_z": ("largest squared singular value: z against the law", "1", {"null": "law"}),
}


class Spectrum:
    """Reads one layer's matrices at a time; needs no model and no prompts."""

    def __init__(self, parameters: SpectrumParameters, context: Context) -> None:
        self.parameters = parameters
        self.model = context.model

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        """The spectra of one layer: of each matrix, and of its heads where asked for; nothing if it has no matrix."""
        names: list[str] = [m for m in self.parameters.matrices if m in weights]
        if not names:
            return xr.Dataset()
        tensors = {name: weights[name].detach().cpu().double().numpy() for name in names}
        found = _described({n: _whole(n, t)[None] for n, t in tensors.items()}, "", "tensor").isel(block=0)
        if self.parameters.per_head:
            for head, ids in (("head", weights.heads), ("kv_head", weights.kv_heads)):
                blocks = {n: t for n, t in tensors.items() if _HEAD_OF.get(n) == head}
                if blocks:
                    apart = _described(blocks, f"{head}_", f"{head}_tensor").rename(block=head)
                    found = found.merge(apart.assign_coords({head: np.array(ids)}))
        return found.expand_dims(layer=[layer])

    def join(self, layers: Mapping[int, xr.Dataset]) -> xr.Dataset:
        """All layers in order; where one lacks a matrix that another has, NaN stands for it."""
        found = [layers[n] for n in sorted(layers) if layers[n].data_vars]
        if not found:
            raise ModelError(f"no layer of {self.model.name} has any of {', '.join(self.parameters.matrices)}")
        joined = xr.concat(found, dim="layer", join="outer", combine_attrs="override")
        return joined.assign_attrs(model=self.model.name)


def _whole(name: str, tensor: np.ndarray) -> np.ndarray:
    """The matrix of all heads side by side: [d_model, heads d_head], or for W_O [heads d_head, d_model]."""
    if name not in _HEAD_OF:
        return tensor
    return tensor.reshape(-1, tensor.shape[-1]) if name == "W_O" else np.concatenate(list(tensor), axis=1)


def _described(blocks: Mapping[str, np.ndarray], prefix: str, tensor: str) -> xr.Dataset:
    """Measures [tensor, block] and squared singular values [tensor, block, feature] of stacks of equal matrices."""
    squared = {name: squared_singular_values(stack) for name, stack in blocks.items()}
    longest = max(s.shape[-1] for s in squared.values())
    padded = np.stack([_padded(s, longest) for s in squared.values()])
    rows = [[_measured(m, s) for m, s in zip(blocks[n], squared[n], strict=True)] for n in blocks]
    feature = f"{prefix}feature" if prefix else "feature"
    variables: dict[str, Any] = {
        f"{prefix}squared": (
            (tensor, "block", feature),
            padded,
            {"long_name": "squared singular values, largest first", "units": _SQUARE, "against": 0},
        )
    }
    for measure, (long_name, units, more) in _MEASURES.items():
        values = np.array([[cell[measure] for cell in row] for row in rows])
        variables[prefix + measure] = ((tensor, "block"), values, {"long_name": long_name, "units": units, **more})
    return xr.Dataset(variables, coords={tensor: list(blocks), feature: np.arange(longest)})


def _padded(squared: np.ndarray, longest: int) -> np.ndarray:
    return np.pad(squared, ((0, 0), (0, longest - squared.shape[-1])), constant_values=np.nan)


def _measured(matrix: np.ndarray, squared: np.ndarray) -> dict[str, float]:
    """One matrix: its own numbers, and those of noise of its shape and variance (NaN where all entries are equal)."""
    variance = float(matrix.var())
    found = {
        "mean": float(squared.mean()),
        "maximum": float(squared[0]),
        "sum": float(squared.sum()),
        "effective_rank": float(effective_rank(squared)),
        "variance": variance,
        "rows": float(matrix.shape[0]),
        "columns": float(matrix.shape[1]),
    }
    of_noise = ("distance", "beyond", "law_lower", "law_upper", "maximum_law_mean", "maximum_law_sd", "maximum_law_z")
    if variance == 0:
        return found | dict.fromkeys(of_noise, np.nan)
    law = MarchenkoPastur(matrix.shape[0], matrix.shape[1], variance)
    centre, sd = law.largest
    beyond = float((squared > law.level()).sum())
    values = (law.distance(squared), beyond, *law.edges, centre, sd, (squared[0] - centre) / sd)
    return found | dict(zip(of_noise, map(float, values), strict=True))


def estimate(parameters: SpectrumParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: the largest matrix in float64, and its Gram matrix; disk: the squared singular values."""
    widest = max(info.d_mlp, info.n_heads * info.d_head)
    kept = 8 * len(info.layers) * len(parameters.matrices) * (info.d_model + len(_MEASURES))
    return Estimate(memory=8 * 3 * info.d_model * widest, disk=kept)
