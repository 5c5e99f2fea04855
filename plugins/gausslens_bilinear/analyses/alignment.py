"""bilinear.alignment: what each head's circuits W_Q W_K^T and W_V W_O match, and how heads compose across layers.

Circuits are those that the scores see, with the gains of norms in them (``gausslens.maths.effective_forms``); beside
them stand those of the weights as they are, what position makes of them at each lag, and what biases add.

In attention from one stack to another the two sides of a circuit are of different streams, whose coordinates have
nothing to do with each other: what sets one beside the other (traces, eigenvalues, angles) is left out, and so are lags
and K- and V-composition, for no head of the stack writes what keys and values read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, LayerWeights, ModelInfo, Tokens, variable
from gausslens.maths.effective_forms import Projection, bias_numbers, effective, form_numbers
from gausslens.maths.laws import Product
from gausslens.maths.rotary import Rotation
from gausslens.maths.spectra import effective_rank

from ..maths.circuits import Circuit, circuit, composition, composition_z, read, wrote
from ..maths.noise_fit import bulk_if_any, bulk_numbers
from ..maths.threads import in_threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gausslens.maths.spectra import Floats

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
# Of the circuits of the weights as they are, and of those at a lag.
_SIMPLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    name: _BY_HEAD[name] for name in ("norm", "trace", "trace_z", "symmetric_share")
}
_BIASES = {
    "qk_bias_share": "W_Q W_K^T with biases as a row more: share of its squared norm that biases bring",
    "qk_key_bias_share": "of that, what hangs on the key alone, which every query sees alike: b_Q W_K^T",
    "ov_bias_share": "W_V W_O with the bias as a row more: share of its squared norm that the bias brings",
}
_CIRCUITS = {"qk": "W_Q W_K^T", "ov": "W_V W_O"}
# What takes both sides of a circuit for vectors of one stream, by the end of its name.
_OF_ONE_STREAM = (
    *("eigenvalue_real", "eigenvalue_imaginary", "positive_share", "balance", "symmetric_share"),
    *("trace", "trace_z", "cosine", "alignment", "alignment_z", "leading_cosine"),
    *("raw_trace", "raw_trace_z", "raw_symmetric_share"),
)
_READS = {"q": "qk", "k": "qk", "v": "ov"}
_COMPOSES = {"q": "queries", "k": "keys", "v": "values"}


class Alignment:
    """Reads one layer's attention at a time; what heads write and read is kept to compose them across layers."""

    def __init__(self, parameters: AlignmentParameters, context: Context) -> None:
        self.parameters = parameters
        self.model = context.model

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        """The circuits of one layer's heads, and their factors where heads are to be composed."""
        raw = _raw(weights)
        found: dict[str, Any] = {}
        factors = raw
        if self.gained:
            seen = effective(weights, self.model.facts.scoring(layer))
            (query, key), (value, W_O) = seen.qk(), seen.ov()
            factors = query.W, key.W, value.W, W_O
            if not self.crossed:
                found |= _at_lags(query, key, seen.scoring.rotation, self.parameters.lags)
            found |= _biases(query, key, value, W_O)
        circuits = {
            name: in_threads(_circuit, list(zip(A, B, strict=True))) for name, (A, B) in _pairs(*factors).items()
        }
        for name, each in circuits.items():
            found |= _described(name, each, max(weights.info.d_head, weights.info.d_value or 0))
        for name, (A, B) in _pairs(*raw).items():
            numbers = [_simple(*pair, Rotation(A.shape[2]), np.zeros(1)) for pair in zip(A, B, strict=True)]
            for what, (text, units, more) in _SIMPLE.items():
                long_name, values = (
                    f"{_CIRCUITS[name]} of the weights as they are: {text}",
                    [n[what][0] for n in numbers],
                )
                found[f"{name}_raw_{what}"] = variable("head", np.array(values), long_name, units, **more)
        dataset = xr.Dataset(found, coords={"head": list(weights.heads)})
        if self.crossed:
            dataset = dataset.drop_vars([f"{name}_{end}" for name in circuits for end in _OF_ONE_STREAM])
        elif self.gained:
            dataset = dataset.assign_coords(lag=list(self.parameters.lags))
        if not self.parameters.composition:
            return dataset
        kept = _kept(factors, circuits["qk"], circuits["ov"])
        return dataset.assign({n: kept[n] for n in ("factor_wrote", *(f"factor_{kind}" for kind in self.composes))})

    def join(self, layers: Mapping[int, xr.Dataset]) -> xr.Dataset:
        """All layers in order, and every head with every earlier one."""
        order = sorted(layers)
        factors = [str(v) for v in next(iter(layers.values())).data_vars if str(v).startswith("factor_")]
        parts = [layers[n].drop_vars(factors).expand_dims(layer=[n]) for n in order]
        joined = xr.concat(parts, dim="layer", join="outer", combine_attrs="override")
        if factors and len(order) > 1:
            joined = joined.merge(_composed(layers, order, self.composes))
        if self.crossed:
            joined.attrs["streams"] = "one side of each circuit reads the other stack: nothing sets it beside the other"
        return joined.assign_attrs(
            d_model=self.model.d_model,
            model=self.model.name,
            circuits="with the gains of norms" if self.gained else "of the weights as they are",
            gauge="nothing here changes under W_Q -> W_Q A, W_K -> W_K A^-T (at lags: A that turns with position)",
        )

    @property
    def gained(self) -> bool:
        """Whether circuits have the gains of norms in them: as asked, where the loader tells of the norms."""
        return self.parameters.gains and self.model.facts.scoring_is_known

    @property
    def crossed(self) -> bool:
        """Whether keys and values read another stack."""
        return self.model.facts.crossed

    @property
    def composes(self) -> tuple[str, ...]:
        """What an earlier head's output may enter: of keys and values of another stack, the queries alone."""
        return ("q",) if self.crossed else tuple(_READS)


def _kept(factors: tuple[Floats, ...], qk: list[Circuit], ov: list[Circuit]) -> dict[str, Any]:
    """What heads write and read, to compose them."""
    W_Q, W_K, W_V, W_O = factors
    (of_q, of_k), (of_v, of_o) = ([np.stack([one.triangles[i] for one in each]) for i in (0, 1)] for each in (qk, ov))
    kept = {
        "wrote": wrote(of_v, W_O).swapaxes(-1, -2),
        "q": read(W_Q, of_k),
        "k": read(W_K, of_q),
        "v": read(W_V, of_o),
    }
    inner = {"wrote": "d_value", "v": "d_value", "q": "d_head", "k": "d_head"}
    return {f"factor_{n}": (("head", "d_model", inner[n]), array.astype(np.float32)) for n, array in kept.items()}


def _raw(weights: LayerWeights) -> tuple[Floats, Floats, Floats, Floats]:
    """W_Q, W_K, W_V [head, d_model, d_head] and W_O [head, d_head, d_model], key/value heads as each head sees them."""
    of = list(weights.kv_of_head)
    W_Q, W_K, W_V, W_O = (weights[n].detach().cpu().double().numpy() for n in ("W_Q", "W_K", "W_V", "W_O"))
    return W_Q, W_K[of], W_V[of], W_O


def _pairs(W_Q: Floats, W_K: Floats, W_V: Floats, W_O: Floats) -> dict[str, tuple[Floats, Floats]]:
    return {"qk": (W_Q, W_K), "ov": (W_V, W_O.swapaxes(-1, -2))}


def _simple(A: Floats, B: Floats, rotation: Rotation, lags: Floats) -> dict[str, Floats]:
    """Norm, trace, trace against chance and symmetric share of A R(-lag) B^T at each lag, for no decomposition."""
    trace, square, norm = form_numbers(A, B, rotation, lags)
    with np.errstate(invalid="ignore", divide="ignore"):
        z, symmetric = trace / np.sqrt(norm / len(A)), (1 + square / norm) / 2
    return {"norm": np.sqrt(norm), "trace": trace, "trace_z": z, "symmetric_share": symmetric}


def _at_lags(query: Projection, key: Projection, rotation: Rotation, lags: tuple[int, ...]) -> dict[str, Any]:
    """Variables [head, lag] of the form in which tokens at these lags meet."""
    at = np.array(lags, dtype=np.float64)
    each = [_simple(A, B, rotation, at) for A, B in zip(query.W, key.W, strict=True)]
    return {
        f"qk_at_lag_{what}": variable(
            ("head", "lag"), np.stack([one[what] for one in each]), f"W_Q R(-lag) W_K^T: {text}", units, **more
        )
        for what, (text, units, more) in _SIMPLE.items()
    }


def _biases(query: Projection, key: Projection, value: Projection, W_O: Floats) -> dict[str, Any]:
    """What biases bring, of vectors whose coordinates have mean square 1, as a norm makes them."""
    rows = []
    for head, (A, B) in enumerate(zip(query.W, key.W, strict=True)):
        still = bias_numbers(query, key, head, Rotation(A.shape[1]), np.zeros(1))
        of_query, of_key, _, both = (float(one[0]) for one in still)
        form = _squared(A, B) + of_query + of_key + both**2
        written = float(((value.b[head] @ W_O[head]) ** 2).sum())
        output = _squared(value.W[head], W_O[head].T) + written
        shares = (of_query + of_key + both**2, form), (of_key, form), (written, output)
        rows.append([part / whole if whole > 0 else np.nan for part, whole in shares])
    values = np.array(rows, dtype=np.float64).T
    return {name: variable("head", one, text) for (name, text), one in zip(_BIASES.items(), values, strict=True)}


def _squared(A: Floats, B: Floats) -> float:
    """|A B^T|_F^2."""
    return float(((A.T @ A) * (B.T @ B)).sum())


def _circuit(factors: tuple[np.ndarray, np.ndarray]) -> Circuit:
    return circuit(*factors)


def _described(name: str, each: list[Circuit], components: int) -> dict[str, Any]:
    """Variables of one circuit of all heads; of components that it lacks (values may be narrower) there is nothing."""
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
        missing = [(0, 0), (0, components - values.shape[1])]
        values = np.pad(values, missing, constant_values=np.nan if what == "cosine" else 0.0)
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


def _composed(layers: Mapping[int, xr.Dataset], order: list[int], kinds: tuple[str, ...]) -> xr.Dataset:
    """Composition of each head with each earlier one, and each against chance; NaN where not earlier."""
    heads = layers[order[0]].sizes["head"]
    dims = ("layer", "head", "from_layer", "from_head")
    shape = (len(order), heads, len(order), heads)
    made = {f"{kind}_composition{end}": np.full(shape, np.nan) for kind in kinds for end in ("", "_z")}

    def pair(places: tuple[int, int]) -> None:
        later, earlier = (layers[order[i]] for i in places)
        writer = earlier["factor_wrote"].values.swapaxes(-1, -2)
        for kind in kinds:
            name = _READS[kind]
            found = composition(writer, later[f"factor_{kind}"].values)
            squared = earlier["ov_squared"].values, later[f"{name}_squared"].values
            made[f"{kind}_composition"][places[0], :, places[1], :] = found
            width = later.sizes["d_model"]
            made[f"{kind}_composition_z"][places[0], :, places[1], :] = composition_z(found, width, *squared)

    in_threads(pair, [(i, j) for i in range(len(order)) for j in range(i)])
    variables: dict[str, Any] = {}
    for kind in kinds:
        what = _COMPOSES[kind]
        text = f"{kind.upper()}-composition: how much an earlier head's output enters {what}"
        variables[f"{kind}_composition"] = variable(dims, made[f"{kind}_composition"], text)
        against = f"{text}, against heads turned at random"
        variables[f"{kind}_composition_z"] = variable(dims, made[f"{kind}_composition_z"], against, "z", **_LAW)
    ids = layers[order[0]]["head"].values
    return xr.Dataset(variables, coords={"layer": order, "head": ids, "from_layer": order, "from_head": ids})


def estimate(parameters: AlignmentParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: a layer's attention in float64, and with composition four factors of every layer in float32.

    Seconds were measured on one core: of each circuit its decomposition and its law, of each pair of layers a product.
    """
    heads, layers = len(info.heads), len(info.layers)
    factor = heads * info.d_model * info.d_head
    pairs = layers * (layers - 1) // 2 if parameters.composition else 0
    composed = 8 * 6 * (layers * heads) ** 2 if parameters.composition else 0
    memory = 8 * 6 * factor + (4 * 4 * factor * layers + composed if parameters.composition else 0)
    each = 3e-3 + 2e-9 * info.d_model * info.d_head**2
    seconds = 2 * layers * heads * each + pairs * 3 * 2 * float(info.d_model) * (heads * info.d_head) ** 2 / 2e10
    disk = 8 * layers * heads * 2 * (4 * info.d_head + len(_BY_HEAD)) + composed
    return Estimate(memory=memory, disk=disk, seconds=seconds)
