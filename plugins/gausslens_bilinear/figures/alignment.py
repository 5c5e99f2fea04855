"""What the report shows of bilinear.alignment: circuits of single heads, and heads that compose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Line, Source, Spectrum, Table, averaged, head_map, null_maps, pooled_over
from gausslens.maths.laws import Product

from . import shown

if TYPE_CHECKING:
    from gausslens import Result, Results


_CIRCUITS = {"qk": "W_Q W_K^T", "ov": "W_V W_O"}
_BIASES = (
    "Share of the squared norm of W_Q W_K^T, with the biases as a row more, that the biases bring: 0 where there are "
    "none, near 1 where a score hardly hangs on both tokens at once."
)
_MEASURES: dict[str, tuple[str, str, float | None]] = {
    "trace_z": (
        "Trace",
        "Positive: like is matched with like (of W_V W_O: what is read is written again); negative: with its opposite. "
        "In standard deviations of a head whose two sides are unrelated, with the same spectrum.",
        0.0,
    ),
    "balance": ("Balance of eigenvalues", "Trace over the sum of the eigenvalues' moduli: 1 copies, -1 inverts.", 0.0),
    "alignment_z": (
        "Overlap of both sides",
        "Mean squared cosine between the subspaces on the head's two sides, against random subspaces.",
        0.0,
    ),
    "distance": (
        "Distance from the law of products",
        "How far the spectrum is from that of a product of two random matrices of these shapes (Kolmogorov); 0: noise.",
        None,
    ),
}


def alignment(results: Results) -> list[Figure]:
    """What each head's circuits match, the spectrum furthest from noise beside its law, and who composes with whom."""
    figures: list[Figure] = []
    for result in shown(results, "bilinear.alignment"):
        data = result.data
        for circuit, formula in _CIRCUITS.items():
            # Attention to another stack has nothing that sets one side of a circuit beside the other.
            told = {f"{circuit}_{measure}": words for measure, words in _MEASURES.items()}
            for name, (title, caption, centre) in ((n, words) for n, words in told.items() if n in data):
                where = Source(result.variant, result.label, name)
                figures.append(
                    head_map(
                        data[name],
                        f"{title} of {formula}, {result.variant}",
                        caption,
                        where,
                        centre,
                        swept=result.swept,
                    )
                )
            figures.append(_product(result, circuit, formula))
            name, title = f"{circuit}_balance", "Balance"
            if name not in data:
                name, title = f"{circuit}_distance", "Distance from the law of products"
            figures += null_maps(results, result, name, f"{title} of {formula}")
        if "qk_bias_share" in data and float(data["qk_bias_share"].max()) > 0:
            where = Source(result.variant, result.label, "qk_bias_share")
            figures.append(
                head_map(
                    data["qk_bias_share"], f"What biases bring, {result.variant}", _BIASES, where, swept=result.swept
                )
            )
        if "q_composition_z" in data:
            figures.append(_composition(result))
    return figures


def _product(result: Result, circuit: str, formula: str) -> Figure:
    """The head furthest from the law of products, with that law drawn over."""
    data = result.data
    distances = averaged(data[f"{circuit}_distance"], "layer", "head")
    i, j = np.unravel_index(int(np.nanargmax(np.where(np.isfinite(distances), distances, -1))), distances.shape)
    values = averaged(data[f"{circuit}_squared"], "layer", "head", "component")[i, j]
    values = values[np.isfinite(values)]
    width = int(data.attrs["d_model"])
    law = Product(width, len(values), width, 1.0)
    law = replace(law, variance=float(values.mean()) / law.mean)
    layer, head = data["layer"].values[i], data["head"].values[j]
    return Spectrum(
        title=f"{formula} of layer {layer}, head {head}, {result.variant}",
        caption="Squared singular values, and those expected of a product of two random matrices of the same shapes "
        "with the same sum (free multiplicative convolution); the head is the one furthest from that law."
        + pooled_over(result),
        sources=(Source(result.variant, result.label, f"{circuit}_squared"),),
        units=data[f"{circuit}_squared"].attrs["units"],
        series=(Line(result.variant, values), Line("law of products of noise", law.typical(), reference=True)),
        edges=law.edges,
    )


def _composition(result: Result, most: int = 8) -> Figure:
    data = result.data
    kinds = [kind for kind in "qkv" if f"{kind}_composition_z" in data]
    rows: list[tuple[str, int, int, int, int, float, float]] = []
    for kind in kinds:
        z = averaged(data[f"{kind}_composition_z"], "layer", "head", "from_layer", "from_head")
        ratio = averaged(data[f"{kind}_composition"], "layer", "head", "from_layer", "from_head")
        order = np.argsort(-np.nan_to_num(z, nan=-np.inf), axis=None)[:most]
        for to, into, source, out in np.stack(np.unravel_index(order, z.shape), axis=-1).tolist():
            writer = int(data["from_layer"].values[source]), int(data["from_head"].values[out])
            reader = int(data["layer"].values[to]), int(data["head"].values[into])
            numbers = float(ratio[to, into, source, out]), float(z[to, into, source, out])
            rows.append((kind.upper(), *writer, *reader, *numbers))
    return Table(
        title=f"Which heads compose, {result.variant}",
        caption="The strongest pairs of an earlier head's output with a later one's queries (Q), keys (K), values (V): "
        "|C1 C2| / (|C1| |C2|), and its z against heads of the same spectra turned at random." + pooled_over(result),
        sources=tuple(Source(result.variant, result.label, f"{kind}_composition_z") for kind in kinds),
        columns=("kind", "from layer", "from head", "to layer", "to head", "composition", "z"),
        rows=[row for row in rows if np.isfinite(row[-1])],
    )
