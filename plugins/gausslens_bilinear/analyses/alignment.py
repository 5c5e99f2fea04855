"""bilinear.alignment: what each head's circuits W_Q W_K^T and W_V W_O match, and how heads compose across layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, LayerWeights, ModelError, ModelInfo, Tokens, variable
from gausslens.maths.laws import Product
from gausslens.maths.spectra import effective_rank

from ..maths.circuits import Circuit, circuit, composition, composition_z, read, wrote
from ..maths.noise_fit import bulk_if_any, bulk_numbers
from ..maths.threads import in_threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..parameters import AlignmentParameters

_SQUARE = "weight^4"
_LAW: dict[str, Any] = {"null": "law"}
_LEFT: dict[str, Any] = {"against": 0}
# name: long_name (after the circuit's), units, attributes
_BY_COMPONENT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "squared": ("squared singular values, largest first", _SQUARE, _LEFT),
    "eigenvalue_real": ("real parts of the eigenvalues, largest modulus first", "squared weight", _LEFT),
    "eigenvalue_imaginary": ("imaginary parts of the eigenvalues", "squared weight", _LEFT),
    "cosine": ("cosines of the principal angles between what its two sides read or write", "1", _LEFT),
}
_BY_HEAD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "norm": ("Frobenius norm", "squared weight", {}),
    "maximum": ("largest squared singular value", _SQUARE, {}),
    "effective_rank": ("effective rank exp(H(shares))", "dimensions", {}),
    "trace": ("trace", "squared weight", {}),
    "trace_z": ("trace over |C|/sqrt(d), its spread if both sides were unrelated", "z", _LAW),
    "positive_share": ("share of the moduli of the eigenvalues at positive real part", "1", {}),
    "balance": ("trace over the sum of the moduli of the eigenvalues, -1 to 1", "1", {}),
    "symmetric_share": ("share of the squared norm that is symmetric", "1", {}),
    "alignment": ("mean squared cosine between its two sides' subspaces", "1", {}),
    "alignment_z": ("mean squared cosine against random subspaces", "z", _LAW),
    "leading_cosine": ("cosine between the leading left and right singular vectors", "1", {}),
    "leading_gap": ("relative gap below the largest singular value; near 0 its vectors are arbitrary", "1", {}),
    "distance": ("Kolmogorov distance to the law of a product of noise with the same sum", "1", {}),
    "beyond": ("squared singular values that such a product exceeds once in a hundred", "values", _LAW),
    "spikes": ("squared singular values beyond the bulk of a product of noise, where there is one", "values", _LAW),
    "bulk_distance": ("distance of the bulk from the law of products of noise", "1", _LAW),
    "bulk_accepted": ("1 where the bulk follows the law of a product of noise, else 0", "1", _LAW),
    "bulk_upper": ("upper edge of the fitted bulk", _SQUARE, _LEFT),
}
_CIRCUITS = {"qk": "W_Q W_K^T", "ov": "W_V W_O"}
_READS = {"q": "qk", "k": "qk", "v": "ov"}
_COMPOSES = {"q": "queries", "k": "keys", "v": "values"}


class Alignment:
    """Reads one layer's attention at a time; what heads write and read is kept to compose them across layers."""

    def __init__(self, parameters: AlignmentParameters, context: Context) -> None:
        self.parameters = parameters
        self.model = context.model

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:  # noqa: ARG002
        """The circuits of one layer's heads, and their factors where heads are to be composed."""
        W_Q, W_K, W_V, W_O = self._attention(weights)
        factors = {"qk": (W_Q, W_K), "ov": (W_V, W_O.swapaxes(-1, -2))}
        found: dict[str, Any] = {}
        for name, (A, B) in factors.items():
            found |= _described(name, in_threads(_circuit, list(zip(A, B, strict=True))))
        dataset = xr.Dataset(found, coords={"head": list(weights.heads)})
        if self.parameters.composition:
            kept = {
                "wrote": wrote(W_V, W_O).swapaxes(-1, -2),
                "q": read(W_Q, W_K),
                "k": read(W_K, W_Q),
                "v": read(W_V, W_O.swapaxes(-1, -2)),
            }
            for name, array in kept.items():
                dataset[f"factor_{name}"] = (("head", "d_model", "inner"), array.astype(np.float32))
        return dataset

    def join(self, layers: Mapping[int, xr.Dataset]) -> xr.Dataset:
        """All layers in order, and every head with every earlier one."""
        order = sorted(layers)
        factors = [str(v) for v in next(iter(layers.values())).data_vars if str(v).startswith("factor_")]
        parts = [layers[n].drop_vars(factors).expand_dims(layer=[n]) for n in order]
        joined = xr.concat(parts, dim="layer", join="outer", combine_attrs="override")
        if factors and len(order) > 1:
            joined = joined.merge(_composed(layers, order))
        return joined.assign_attrs(
            d_model=self.model.d_model,
            model=self.model.name,
            gauge="nothing here changes under W_Q -> W_Q A, W_K -> W_K A^-T",
        )

    def _attention(self, weights: LayerWeights) -> tuple[np.ndarray, ...]:
        """W_Q, W_K, W_V [head, d_model, d_head] and W_O [head, d_head, d_model], key/value heads as each head sees."""
        of = list(weights.kv_of_head)
        W_Q, W_K, W_V, W_O = (weights[n].detach().cpu().double().numpy() for n in ("W_Q", "W_K", "W_V", "W_O"))
        if self.parameters.gains:
            if "ln1.w" not in weights or not self.model.facts.norm_first:
                raise ModelError(f"{self.model.name} has no gain before its attention: leave out `gains`")
            gain = weights["ln1.w"].detach().cpu().double().numpy()[:, None]
            W_Q, W_K, W_V = (gain * W for W in (W_Q, W_K, W_V))
        return W_Q, W_K[of], W_V[of], W_O


def _circuit(factors: tuple[np.ndarray, np.ndarray]) -> Circuit:
    return circuit(*factors)


def _described(name: str, each: list[Circuit]) -> dict[str, Any]:
    """Variables of one circuit of all heads."""
    arrays = {
        "squared": [c.squared for c in each],
        "eigenvalue_real": [c.eigenvalues.real for c in each],
        "eigenvalue_imaginary": [c.eigenvalues.imag for c in each],
        "cosine": [c.cosines for c in each],
    }
    scalars = [_numbers(c) for c in each]
    made: dict[str, Any] = {}
    for what, (text, units, more) in _BY_COMPONENT.items():
        long_name, values = f"{_CIRCUITS[name]}: {text}", np.stack(arrays[what])
        made[f"{name}_{what}"] = variable(("head", "component"), values, long_name, units, **more)
    for what, (text, units, more) in _BY_HEAD.items():
        long_name, values = f"{_CIRCUITS[name]}: {text}", np.array([one.get(what, np.nan) for one in scalars])
        made[f"{name}_{what}"] = variable("head", values, long_name, units, **more)
    return made


def _numbers(one: Circuit) -> dict[str, float]:
    names = (
        "norm",
        "trace",
        "trace_z",
        "positive_share",
        "balance",
        "symmetric_share",
        "alignment",
        "alignment_z",
        "leading_gap",
    )
    found = {name: float(getattr(one, name)) for name in names}
    found |= {"maximum": float(one.squared[0]), "leading_cosine": float(one.leading_cosine)}
    found["effective_rank"] = float(effective_rank(one.squared))
    if one.norm > 0:
        law = Product(one.dimension, one.inner, one.dimension, 1.0)
        law = replace(law, variance=float(one.squared.mean()) / law.mean)
        found |= {"distance": law.distance(one.squared), "beyond": float((one.squared > law.level()).sum())}
    return found | bulk_numbers(bulk_if_any(one.squared, one.dimension, one.dimension, inner=one.inner))


def _composed(layers: Mapping[int, xr.Dataset], order: list[int]) -> xr.Dataset:
    """Q-, K- and V-composition of each head with each earlier one, and each against chance; NaN where not earlier."""
    heads = layers[order[0]].sizes["head"]
    dims = ("layer", "head", "from_layer", "from_head")
    shape = (len(order), heads, len(order), heads)
    made = {f"{kind}_composition{end}": np.full(shape, np.nan) for kind in _READS for end in ("", "_z")}

    def pair(places: tuple[int, int]) -> None:
        later, earlier = (layers[order[i]] for i in places)
        writer = earlier["factor_wrote"].values.swapaxes(-1, -2)
        for kind, name in _READS.items():
            found = composition(writer, later[f"factor_{kind}"].values)
            squared = earlier["ov_squared"].values, later[f"{name}_squared"].values
            made[f"{kind}_composition"][places[0], :, places[1], :] = found
            width = later.sizes["d_model"]
            made[f"{kind}_composition_z"][places[0], :, places[1], :] = composition_z(found, width, *squared)

    in_threads(pair, [(i, j) for i in range(len(order)) for j in range(i)])
    variables: dict[str, Any] = {}
    for kind, what in _COMPOSES.items():
        text = f"{kind.upper()}-composition: how much an earlier head's output enters {what}"
        variables[f"{kind}_composition"] = variable(dims, made[f"{kind}_composition"], text)
        against = f"{text}, against heads turned at random"
        variables[f"{kind}_composition_z"] = variable(dims, made[f"{kind}_composition_z"], against, "z", **_LAW)
    ids = layers[order[0]]["head"].values
    return xr.Dataset(variables, coords={"layer": order, "head": ids, "from_layer": order, "from_head": ids})


def estimate(parameters: AlignmentParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: a layer's attention in float64, and with composition four factors of every layer in float32."""
    heads, layers = len(info.heads), len(info.layers)
    factor = heads * info.d_model * info.d_head
    pairs = layers * (layers - 1) // 2 if parameters.composition else 0
    composed = 8 * 6 * (layers * heads) ** 2 if parameters.composition else 0
    memory = 8 * 6 * factor + (4 * 4 * factor * layers + composed if parameters.composition else 0)
    seconds = pairs * 3 * 2 * float(info.d_model) * (heads * info.d_head) ** 2 / 2e10
    disk = 8 * layers * heads * 2 * (4 * info.d_head + len(_BY_HEAD)) + composed
    return Estimate(memory=memory, disk=disk, seconds=seconds)
