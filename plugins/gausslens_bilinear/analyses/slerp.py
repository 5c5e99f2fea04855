"""bilinear.slerp: divergence along the arc between two vectors, held against a cosine in the place on the arc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens, variable

from ..maths.slerp import cosine_misfit, js, kl, kl_on_arc, slerp

if TYPE_CHECKING:
    from ..parameters import SlerpParameters

Floats: TypeAlias = NDArray[np.float64]
_KINDS = {"kl": "KL(softmax(l w) || softmax(l v(t)))", "js": "Jensen-Shannon divergence of the two"}


class Slerp:
    """Pairs of random unit vectors of given dimension, and pairs of the model's embeddings, all of unit length."""

    def __init__(self, parameters: SlerpParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:  # noqa: ARG002
        """Divergence from one end along the arc [ends, length, t], and how far it is from a cosine [ends, length]."""
        pairs = self.parameters.pairs
        ends = {f"random, n = {n}": _random(n, pairs, self._drawn(str(n))) for n in self.parameters.sizes}
        ends["embeddings"] = _rows(
            runner.weights(None)["W_E"].detach().float().cpu().numpy(), pairs, self._drawn("W_E")
        )
        t = np.linspace(0.0, 1.0, self.parameters.points)
        found = [[_along(v, w, t, length) for length in self.parameters.lengths] for v, w in ends.values()]
        dimensions = [v.shape[-1] for v, _ in ends.values()]
        return _variables(list(ends), dimensions, self.parameters.lengths, t, found)

    def _drawn(self, name: str) -> np.random.Generator:
        return self.context.generator(f"pairs {name}")


def _random(n: int, pairs: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    drawn = generator.standard_normal((2, pairs, n))
    unit = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
    return unit[0], unit[1]


def _rows(vectors: NDArray[Any], pairs: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Pairs of rows of unit length; those that are equal or opposite have no one arc, and others are drawn for them."""
    places = generator.integers(len(vectors), size=(2, 4 * pairs))
    v, w = (vectors[place].astype(np.float64) for place in places)
    lengths = np.linalg.norm(v, axis=-1) * np.linalg.norm(w, axis=-1)
    cosine = (v * w).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0)
    used = np.flatnonzero((lengths > 0) & (np.abs(cosine) < 1 - 1e-9))[:pairs]
    if not len(used):
        raise GausslensError(
            f"bilinear.slerp: of {4 * pairs} pairs of embeddings none has an arc: they are zero, or all alike"
        )
    return tuple(x[used] / np.linalg.norm(x[used], axis=-1, keepdims=True) for x in (v, w))


def _along(v: Floats, w: Floats, t: Floats, length: float) -> dict[str, Floats]:
    """Curves [pair, t] of both divergences from the end w."""
    curves: dict[str, list[Floats]] = {"kl": [], "js": []}
    for start, end in zip(v, w, strict=True):
        arc = length * slerp(start, end, t)
        curves["kl"].append(kl(length * end, arc))
        curves["js"].append(js(length * end, arc))
    return {kind: np.stack(found) for kind, found in curves.items()}


def _variables(
    ends: Sequence[str],
    dimensions: Sequence[int],
    lengths: Sequence[float],
    t: Floats,
    found: Sequence[Sequence[dict[str, Floats]]],
) -> xr.Dataset:
    variables: dict[str, Any] = {"dimension": variable("ends", list(dimensions), "n", against=False)}
    nearly = [[kl_on_arc(n, length, t) for length in lengths] for n in dimensions]
    said = "(l^2/n)(1 - sin(pi t/2)): leading order of KL, for orthogonal ends of mean 0"
    dims = ("ends", "length", "t")
    variables["leading_order"] = variable(dims, np.array(nearly), said, "nats", against=False)
    for kind, text in _KINDS.items():
        curves = [[one[kind] for one in row] for row in found]
        for end, how, said in (
            ("mean", np.mean, "mean over pairs"),
            ("low", _low, "5th percentile of pairs"),
            ("high", _high, "95th percentile of pairs"),
        ):
            values = np.array([[how(one, axis=0) for one in row] for row in curves])
            variables[f"{kind}_{end}"] = variable(dims, values, f"{text}: {said}", "nats", against=False)
        misfits = [[cosine_misfit(t, one) for one in row] for row in curves]
        of_mean = [[cosine_misfit(t, one.mean(axis=0)) for one in row] for row in curves]
        said = f"largest gap between {text} and the nearest a cos(pi t/2 + b) + c, over its range"
        for name, values, who in (
            ("misfit", np.array([[np.median(m) for m in row] for row in misfits]), "median of pairs"),
            ("misfit_most", np.array([[m.max() for m in row] for row in misfits]), "largest of pairs"),
            ("misfit_mean", np.array(of_mean, dtype=np.float64), "of the mean curve"),
        ):
            variables[f"{kind}_{name}"] = variable(("ends", "length"), values, f"{said}: {who}", against=False)
    return xr.Dataset(variables, coords={"ends": list(ends), "length": list(lengths), "t": t})


def _low(curves: Floats, axis: int) -> Floats:
    return np.asarray(np.quantile(curves, 0.05, axis=axis))


def _high(curves: Floats, axis: int) -> Floats:
    return np.asarray(np.quantile(curves, 0.95, axis=axis))


def estimate(parameters: SlerpParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: a block of pairs and the arcs of one; disk: the curves."""
    widest = max((*parameters.sizes, info.d_model))
    count = (len(parameters.sizes) + 1) * len(parameters.lengths)
    curves = 8 * count * parameters.points
    held = 8 * widest * (8 * parameters.pairs + 8 * parameters.points) + 2 * curves * parameters.pairs
    # A dozen passes over each arc, at some 6e8 elements a second.
    seconds = 12 * count * parameters.pairs * parameters.points * widest / 6e8
    return Estimate(memory=held, disk=8 * curves, seconds=seconds)
