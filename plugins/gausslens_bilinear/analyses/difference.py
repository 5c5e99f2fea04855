"""bilinear.difference: what the difference of two models' weights has in common with the model it was added to.

``weights`` are those of the difference, ``weights.base`` those of the model that is taken away: what fine-tuning put
there, beside where it put it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, LayerWeights, ModelError, ModelInfo, Tokens, variable

from ..maths.threads import in_threads
from ..maths.weight_difference import SIDES, of_difference
from .spectrum import GAUGE, HEAD_OF, joined, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..parameters import DifferenceParameters

_BOTH = ("leading", "side")
# Compared with nulls are numbers that a null of equal norm does not keep, and that have a spread there.
_LEFT: dict[str, Any] = {"against": False}
# name: long_name, units, dimensions behind those of the matrix, and whether it is compared
_MEASURES: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "norm": ("Frobenius norm of the difference", "weight", (), _LEFT),
    "base_norm": ("Frobenius norm of the base", "weight", (), _LEFT),
    "relative_norm": ("norm of the difference over that of the base", "1", (), _LEFT),
    "cosine": ("cosine between difference and base, entry by entry", "1", (), {}),
    "effective_rank": ("effective rank exp(H(shares)) of the difference", "dimensions", (), {}),
    "stable_rank": ("stable rank of the difference: energy over its largest share", "dimensions", (), {}),
    "matrix_rank": ("singular values of the difference beyond rounding of what is stored", "values", (), _LEFT),
    "rounding": ("singular value that rounding of what is stored may bring into the difference", "weight", (), _LEFT),
    "leading_share": ("share of the difference's energy in its leading directions", "1", ("leading",), {}),
    "overlap": ("mean squared cosine of leading directions, difference and base", "1", _BOTH, {}),
    "captured": ("share of the difference's energy in the base's leading directions of a side", "1", _BOTH, {}),
    "captured_both": ("share of the difference's energy in the base's leading directions", "1", ("leading",), {}),
    "base_share": ("share of the base's energy in the difference's leading directions", "1", ("leading",), {}),
    "amplification": ("norm of the difference over the base's, in the leading directions", "1", ("leading",), _LEFT),
    "nearest_mean": ("largest cosine with a base's vector, mean of the sum's leading vectors", "1", _BOTH, {}),
    "intruders": ("leading vectors of base and difference that are near none of the base's", "vectors", _BOTH, _LEFT),
    "nearest": ("largest cosine of a leading vector of the sum with any of the base's", "1", ("place", "side"), _LEFT),
    "chance": ("overlap, and share captured, of directions turned at random", "1", _BOTH, _LEFT),
}


class WeightDifference:
    """Reads one layer of a difference, and of the model that is taken away, at a time."""

    def __init__(self, parameters: DifferenceParameters, context: Context) -> None:
        self.parameters = parameters
        self.model = context.model
        if not context.model.facts.difference:
            raise ModelError(
                f"{context.model.name} is one model: bilinear.difference reads a variant that is the difference of "
                "two, as `added: {difference: [tuned, base]}`"
            )

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        """The numbers of one layer: of each matrix, and of its heads where asked for; nothing if it has no matrix."""
        names: list[str] = [m for m in self.parameters.matrices if m in weights]
        if not names:
            return xr.Dataset()
        base = weights.base(layer)
        pairs = {name: tuple(w[name].detach().cpu().double().numpy() for w in (base, weights)) for name in names}
        sides = {n: tuple(whole(n, t)[None] for t in pair) for n, pair in pairs.items()}
        found = self._variables(sides, "", "tensor").isel(block=0)
        if self.parameters.per_head:
            for head, ids in (("head", weights.heads), ("kv_head", weights.kv_heads)):
                blocks = {n: pair for n, pair in pairs.items() if HEAD_OF.get(n) == head}
                if blocks:
                    apart = self._variables(blocks, f"{head}_", f"{head}_tensor").rename(block=head)
                    found = found.merge(apart.assign_coords({head: np.array(ids)}))
        return found.expand_dims(layer=[layer])

    def join(self, layers: Mapping[int, xr.Dataset]) -> xr.Dataset:
        """All layers in order; of matrices that are equal in both models it is told how many there are."""
        found = joined(layers, self.model.name, self.parameters.matrices)
        zero = found["norm"] == 0
        if not bool(zero.any()):
            return found
        note = f"{int(zero.sum())} of {zero.size} matrices are equal in both models: NaN stands for 0/0"
        return found.assign_attrs(note=note)

    def _variables(self, pairs: Mapping[str, tuple[np.ndarray, ...]], prefix: str, tensor: str) -> xr.Dataset:
        """Measures [tensor, block, ...] of stacks of matrices, (base, difference) by name."""
        ranks, similar = self.parameters.ranks, self.parameters.similar
        each = [both for stacks in pairs.values() for both in zip(*stacks, strict=True)]
        made = in_threads(lambda both: of_difference(both[0], both[1], ranks, similar), each)
        lead = (len(pairs), len(each) // len(pairs))
        gauge: dict[str, Any] = {"gauge": GAUGE} if set(pairs) & set(HEAD_OF) else {}
        variables: dict[str, Any] = {}
        for name, (long_name, units, dims, more) in _MEASURES.items():
            values = np.stack([found[name] for found in made])
            values = values.reshape(*lead, *values.shape[1:])
            told = more if name == "chance" else more | gauge
            variables[prefix + name] = variable((tensor, "block", *dims), values, long_name, units, **told)
        coords = {"leading": list(ranks), "side": list(SIDES), "place": np.arange(1, 1 + max(ranks))}
        return xr.Dataset(variables, coords={tensor: list(pairs), **coords})


def estimate(parameters: DifferenceParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: the tensors of a layer of both in float64, and three decompositions; disk: numbers by rank and side."""
    attention = 2 * info.d_model * (info.n_heads + info.n_kv_heads) * info.d_head
    held = 3 * (attention + 3 * info.d_model * info.d_mlp) + 6 * info.d_model * max(info.d_model, info.d_mlp)
    blocks = len(parameters.matrices) + (4 * info.n_heads if parameters.per_head else 0)
    kept = 8 * len(info.layers) * blocks * (13 * len(parameters.ranks) + 2 * max(parameters.ranks) + 8)
    # An eigendecomposition takes about 9 d^3 flops, a product 2 d^2 d_mlp; all go at some 1e10 a second.
    each = 9 * float(info.d_model) ** 3 + 4 * float(info.d_model) ** 2 * max(info.d_model, info.d_mlp)
    return Estimate(memory=8 * held, disk=kept, seconds=len(info.layers) * len(parameters.matrices) * 3 * each / 1e10)
