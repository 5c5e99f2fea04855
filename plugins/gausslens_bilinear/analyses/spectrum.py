"""bilinear.spectrum: squared singular values of each layer's matrices, beside the law of noise of their shape.

One law judges a matrix: that of Marchenko and Pastur whose variance is fitted to the bulk (maths/noise_fit.py). The
variance of all entries holds the signal too: it moves the edge, and with it what counts as beyond.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, LayerWeights, ModelError, ModelInfo, Tokens, attributes, variable
from gausslens.maths.spectra import effective_rank, squared_singular_values

from ..maths.noise_fit import NoiseBulk, bulk_if_any, bulk_numbers
from ..maths.tail import power_law
from ..maths.threads import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from ..parameters import SpectrumParameters

    # A matrix in float64 is made where its numbers are taken, and let go there.
    Matrix: TypeAlias = Callable[[], np.ndarray]

# Attention's matrices carry heads on their first axis; the MLP's do not.
HEAD_OF = {"W_Q": "head", "W_O": "head", "W_K": "kv_head", "W_V": "kv_head"}
_SQUARE = "squared weight"
GAUGE = "W_Q, W_K, W_V and W_O: changes under W_Q -> W_Q A, W_K -> W_K A^-T and W_V -> W_V A, W_O -> A^-1 W_O"
_LAW: dict[str, Any] = {"null": "law"}
_LEFT: dict[str, Any] = {"against": 0}
# name: long_name, units, attributes for the comparison with a null (against 0: leave out; law: it has its own)
_MEASURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mean": ("mean squared singular value", _SQUARE, {}),
    "squared_variance": ("variance of the squared singular values", "squared weight squared", {}),
    "maximum": ("largest squared singular value", _SQUARE, {}),
    "sum": ("sum of the squared singular values: their mean, times their number", _SQUARE, _LEFT),
    "effective_rank": ("effective rank exp(H(shares))", "dimensions", {}),
    "distance": ("Kolmogorov distance to the Marchenko-Pastur law of the bulk", "1", {}),
    "beyond": ("squared singular values above what noise exceeds once in a hundred matrices", "values", _LAW),
    "variance": ("variance of the entries", _SQUARE, _LEFT),
    "rows": ("rows of the matrix", "1", _LEFT),
    "columns": ("columns of the matrix", "1", _LEFT),
    "law_lower": ("lower edge of the law, which is that of the bulk", _SQUARE, _LEFT),
    "law_upper": ("upper edge of the law, which is that of the bulk", _SQUARE, _LEFT),
    "maximum_law_mean": ("largest squared singular value of noise: mean", _SQUARE, _LEFT),
    "maximum_law_sd": ("largest squared singular value of noise: standard deviation", _SQUARE, _LEFT),
    "maximum_law_z": ("largest squared singular value: z against the law", "1", _LAW),
    "spikes": ("squared singular values beyond the bulk of noise, where there is one", "values", _LAW),
    "bulk_variance": ("variance of the noise that the bulk is fitted by", _SQUARE, _LEFT),
    "bulk_lower": ("lower edge of the fitted bulk", _SQUARE, _LEFT),
    "bulk_upper": ("upper edge of the fitted bulk", _SQUARE, _LEFT),
    "bulk_distance": ("Kolmogorov distance of the bulk to its law", "1", _LAW),
    "bulk_accepted": ("1 where the bulk follows the law of noise, else 0", "1", _LAW),
    "tail_alpha": ("exponent of the power law fitted to the tail", "1", {}),
    "tail_least": ("where the fitted tail begins", _SQUARE, _LEFT),
    "tail_count": ("squared singular values in the fitted tail", "values", _LEFT),
    "tail_distance": ("Kolmogorov distance of the tail to its power law", "1", _LEFT),
}
_OF_SHAPE = ("rows", "columns")


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
        # In the model's own dtype: each becomes float64 where its values are taken, and is let go.
        tensors = {name: weights[name].detach().cpu() for name in names}
        wholes = {n: [partial(_whole, n, t)] for n, t in tensors.items()}
        found = _variables(wholes, "", "tensor").isel(block=0)
        if self.parameters.per_head:
            for head, ids in (("head", weights.heads), ("kv_head", weights.kv_heads)):
                of_heads = {n: t for n, t in tensors.items() if HEAD_OF.get(n) == head}
                blocks = {n: [partial(_doubles, block) for block in t] for n, t in of_heads.items()}
                if blocks:
                    apart = _variables(blocks, f"{head}_", f"{head}_tensor").rename(block=head)
                    found = found.merge(apart.assign_coords({head: np.array(ids)}))
        return found.expand_dims(layer=[layer])

    def join(self, layers: Mapping[int, xr.Dataset]) -> xr.Dataset:
        """All layers in order."""
        return joined(layers, self.model.name, self.parameters.matrices)


def joined(layers: Mapping[int, xr.Dataset], model: str, matrices: Sequence[str]) -> xr.Dataset:
    """Layers in order; where one lacks a matrix that another has, NaN stands for it."""
    found = [layers[n] for n in sorted(layers) if layers[n].data_vars]
    if not found:
        raise ModelError(f"no layer of {model} has any of {', '.join(matrices)}")
    return xr.concat(found, dim="layer", join="outer", combine_attrs="override").assign_attrs(model=model)


def whole(name: str, tensor: np.ndarray) -> np.ndarray:
    """The matrix of all heads or experts side by side: [d_model, heads d_head], or for W_O [heads d_head, d_model]."""
    if tensor.ndim == 2:
        return tensor
    return tensor.reshape(-1, tensor.shape[-1]) if name in ("W_O", "W_out") else np.concatenate(list(tensor), axis=1)


def _doubles(tensor: torch.Tensor) -> np.ndarray:
    """In float64; what is so already is the model's own memory, and is not written to."""
    wide = tensor.double()
    found: np.ndarray = wide.numpy()
    if wide is tensor:
        found.flags.writeable = False
    return found


def _whole(name: str, tensor: torch.Tensor) -> np.ndarray:
    return whole(name, _doubles(tensor))


def _variables(blocks: Mapping[str, Sequence[Matrix]], prefix: str, tensor: str) -> xr.Dataset:
    """Measures [tensor, block] and squared singular values [tensor, block, feature] of stacks of equal matrices."""
    each = [matrix for stack in blocks.values() for matrix in stack]
    made = in_threads(_numbers, each)
    longest = max(len(squared) for squared, _ in made)
    padded = np.stack([np.pad(s, (0, longest - len(s)), constant_values=np.nan) for s, _ in made])
    lead = (len(blocks), len(next(iter(blocks.values()))))
    feature = f"{prefix}feature" if prefix else "feature"
    gauge: dict[str, Any] = {"gauge": GAUGE} if set(blocks) & set(HEAD_OF) else {}
    attrs = attributes("squared singular values, largest first", _SQUARE, **_LEFT, **gauge)
    variables: dict[str, Any] = {f"{prefix}squared": ((tensor, "block", feature), padded.reshape(*lead, -1), attrs)}
    for measure, (long_name, units, more) in _MEASURES.items():
        values = np.array([found[measure] for _, found in made]).reshape(lead)
        more = more if measure in _OF_SHAPE else more | gauge
        variables[prefix + measure] = variable((tensor, "block"), values, long_name, units, **more)
    return xr.Dataset(variables, coords={tensor: list(blocks), feature: np.arange(longest)})


def _numbers(made: Matrix) -> tuple[np.ndarray, dict[str, float]]:
    """Squared singular values of one matrix, and its numbers; NaN where there is no noise to compare it with."""
    matrix = made()
    squared, (rows, columns) = squared_singular_values(matrix), matrix.shape
    variance = _variance(matrix)
    del matrix
    tail = power_law(squared)
    found = dict.fromkeys(_MEASURES, np.nan) | {
        "mean": squared.mean(),
        "squared_variance": squared.var(),
        "maximum": squared[0],
        "sum": squared.sum(),
        "effective_rank": effective_rank(squared),
        "variance": variance,
        "rows": rows,
        "columns": columns,
        "tail_alpha": tail.alpha,
        "tail_least": tail.least,
        "tail_count": tail.count,
        "tail_distance": tail.distance,
    }
    fitted = bulk_if_any(squared, rows, columns)
    found |= bulk_numbers(fitted)
    if fitted is not None:
        found |= _law_numbers(squared, fitted)
    return squared, {name: float(value) for name, value in found.items()}


def _variance(matrix: np.ndarray) -> float:
    """``matrix.var()``, in its own memory where that is nobody else's: it is as large again, and not needed after."""
    if not matrix.flags.writeable:
        return float(matrix.var())
    matrix -= matrix.mean()
    np.multiply(matrix, matrix, out=matrix)
    return float(matrix.sum() / matrix.size)


def _law_numbers(squared: np.ndarray, fitted: NoiseBulk) -> dict[str, float]:
    """All values of a matrix beside the law of its bulk."""
    law = fitted.law
    centre, sd = law.largest
    return {
        "distance": law.distance(squared),
        "beyond": float((squared > fitted.level).sum()),
        "law_lower": law.edges[0],
        "law_upper": law.edges[1],
        "maximum_law_mean": centre,
        "maximum_law_sd": sd,
        "maximum_law_z": float(squared[0] - centre) / sd,
    }


def estimate(parameters: SpectrumParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: the tensors of a layer, and of two matrices float64, a copy and a Gram matrix; disk: squared values."""
    attention = 2 * info.d_model * (info.n_heads + info.n_kv_heads) * info.d_head
    layer = attention + 3 * info.d_model * info.d_mlp
    held = layer // 2 + 2 * (2 * info.d_model * max(info.d_model, info.d_mlp) + info.d_model**2)
    kept = 8 * len(info.layers) * len(parameters.matrices) * (info.d_model + len(_MEASURES))
    # Eigenvalues of a matrix take about 4/3 d^3 flops and go at some 1e10 a second.
    seconds = len(info.layers) * len(parameters.matrices) * 1.4 * float(info.d_model) ** 3 / 1e10
    return Estimate(memory=8 * held, disk=kept, seconds=seconds)
