"""bilinear.angles: does the angle between two tokens' vectors reach the score between them, and the pattern?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens
from gausslens.maths.rotary import Rotation

from .beside import Beside
from .correlation import KINDS, Correlations
from .rows import HIDDEN
from .spheres import angle_share

if TYPE_CHECKING:
    import torch

    from gausslens import LayerWeights

    from .parameters import AnglesParameters

Floats: TypeAlias = NDArray[np.float64]
# Tokens of one forward pass: what is held of it is that of all layers.
_AT_ONCE = 512
_WORDS = {
    "content": "content form <W_q x, W_k y>/sqrt(d_head)",
    "score": "true score",
    "pattern": "attention pattern",
}


@dataclass(frozen=True)
class _Seen:
    """One prompt at one layer: vectors and their queries and keys [position, ...], and which tokens count."""

    x: Floats
    q: NDArray[Any]
    k: NDArray[Any]
    counted: NDArray[np.bool_]
    group: int


class Angles:
    """Runs the model twice on each prompt: for the vectors of every layer, then past its scores, layer by layer."""

    def __init__(self, parameters: AnglesParameters, context: Context) -> None:
        self.parameters, self.info = parameters, context.model

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Correlations of cosine with content form, score and pattern, and the share that theory predicts."""
        layers: dict[int, Correlations] = defaultdict(lambda: Correlations(len(self.info.heads)))
        beside = Beside(prompts, self.parameters.maps)
        for shard in prompts.shards(_AT_ONCE):
            ids, text, mask = prompts.padded(shard)
            counted = text & mask
            counted[:, 0] = False
            vectors = self._vectors(runner, ids, mask)
            seen: dict[int, list[_Seen]] = {}
            for layer, (x, q, k) in vectors.items():
                rows = range(len(shard))
                seen[layer] = [_Seen(x[i], q[i], k[i], counted[i], int(shard[i])) for i in rows]

            def look(
                layer: int, scores: torch.Tensor, pattern: torch.Tensor, _: torch.Tensor, seen: Any = seen
            ) -> None:
                for place, one in enumerate(seen.get(layer, ())):
                    score, attended = (a[place].float().cpu().numpy() for a in (scores, pattern))
                    self._add(layers[layer], layer, one, score, attended)
                    beside.add(one.group, layer, one.x @ one.x.T, attended, score[self.info.heads[0]] > HIDDEN)

            runner.forward(ids, sites=("resid_pre",), replace=look, mask=mask)
        if not layers or not any(one.pairs for one in layers.values()):
            raise GausslensError(
                f"bilinear.angles: {self.info.name} attends to no pair of text tokens in these prompts"
            )
        return self._described(layers, runner).assign(beside.variables(sorted(layers), runner))

    def _vectors(
        self, runner: Runner, ids: NDArray[np.int64], mask: NDArray[np.bool_]
    ) -> dict[int, tuple[Floats, NDArray[Any], NDArray[Any]]]:
        """Of each layer in view with attention: unit vectors, queries and keys [prompt, position, ...]."""
        embedded = self.parameters.between == "embeddings"
        found = runner.forward(ids, sites=("q", "k", "embed" if embedded else "resid_pre"), mask=mask)
        vectors = {}
        for layer in self.info.layers:
            if (layer, "q") in found:
                x = found["embed"] if embedded else found[layer, "resid_pre"]
                q, k = (found[layer, site].float().cpu().numpy() for site in ("q", "k"))
                vectors[layer] = (self._directions(x.double().cpu().numpy()), q, k)
        return vectors

    def _directions(self, x: Floats) -> Floats:
        """Unit vectors of what a layer's norm makes of x: LayerNorm takes out the mean first."""
        if self._centres:
            x = x - x.mean(axis=-1, keepdims=True)
        return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.finfo(np.float64).tiny))

    def _add(self, into: Correlations, layer: int, one: _Seen, scores: NDArray[Any], pattern: NDArray[Any]) -> None:
        """All pairs of different tokens that count and can be seen."""
        n = len(one.counted)
        pairs = (
            one.counted[:, None] & one.counted[None, :] & (scores[self.info.heads[0]] > HIDDEN) & ~np.eye(n, dtype=bool)
        )
        rows = np.flatnonzero(pairs.any(axis=1))
        if not len(rows):
            return
        lags = np.arange(n)[:, None] - np.arange(n)[None, :]
        into.see(one.group, (one.x @ one.x.T)[rows], pairs[rows], lags[rows])
        for place, head in enumerate(self.info.heads):
            key = self.info.kv_of_head[head]
            content = self.info.facts.scale(layer) * (one.q[:, head] @ one.k[:, key].T)
            into.add(place, content[rows], scores[head][rows], pattern[head][rows])

    def _described(self, layers: dict[int, Correlations], runner: Runner) -> xr.Dataset:
        order = sorted(layers)
        dims = ("layer", "head")
        variables: dict[str, Any] = {}
        found = {layer: layers[layer].correlations() for layer in order}
        for i, kind in enumerate(KINDS):
            for j, (end, where) in enumerate((("", "over all pairs"), ("_within", "within the keys of a query"))):
                text = f"correlation of the angle's cosine with the {_WORDS[kind]}, {where}"
                values = np.stack([found[layer][0][:, i, j] for layer in order])
                errors = np.stack([found[layer][1][:, i, j] for layer in order])
                variables[f"{kind}_correlation{end}"] = (dims, values, {"long_name": text, "units": "1"})
                more = {"long_name": f"standard error of the {text}", "units": "1", "against": 0}
                variables[f"{kind}_correlation{end}_error"] = (dims, errors, more)
        for kind in ("content", "score"):
            text = f"share of the variance of the {_WORDS[kind]} that the angle explains"
            measured = variables[f"{kind}_correlation"][1] ** 2
            variables[f"{kind}_share"] = (dims, measured, {"long_name": f"{text}: measured", "units": "1"})
        predicted = np.array([self._predicted(runner.weights(n), n, layers[n]) for n in order])
        random = np.array([[layers[n].cosines()[1] / self._width] * len(self.info.heads) for n in order])
        for name, values, how in (
            (
                "content_share_predicted",
                predicted[..., 0],
                "content form, as this head's weights and turned vectors give",
            ),
            ("score_share_predicted", predicted[..., 1], "true score, as this head's weights and turned vectors give"),
            ("share_untied", random, "content form, as untied random weights would give: Var(cosine)/d_model"),
        ):
            text = f"share of the variance that the angle explains of the {how}"
            variables[name] = (dims, values, {"long_name": text, "units": "1", "against": 0})
        means, spreads = zip(*(layers[n].cosines() for n in order), strict=True)
        for name, one in (("mean", np.array(means)), ("sd", np.sqrt(spreads))):
            variables[f"cosine_{name}"] = (("layer",), one, {"long_name": f"{name} of the cosines", "units": "1"})
        coords = {"layer": order, "head": list(self.info.heads)}
        return xr.Dataset(variables, coords=coords).assign_attrs(model=self.info.name, between=self.parameters.between)

    @property
    def _centres(self) -> bool:
        """Whether what a layer reads has mean 0: then it fills one dimension less."""
        return self.info.facts.get("norm") == "layer" and bool(self.info.facts.get("norm_first", True))

    @property
    def _width(self) -> int:
        """Of the space that the vectors fill."""
        return self.info.d_model - self._centres

    def _predicted(self, weights: LayerWeights, layer: int, seen: Correlations) -> Floats:
        """Predicted shares [head, 2] of content form and score, from the head's C at each lag that was seen."""
        mean, variance = seen.cosines()
        lags, counts = seen.lags()
        W_Q, W_K = (weights[n].detach().cpu().double().numpy() for n in ("W_Q", "W_K"))
        if "ln1.w" in weights and self.info.facts.get("norm_first", True):
            gain = weights["ln1.w"].detach().cpu().double().numpy()[:, None]
            W_Q, W_K = gain * W_Q, gain * W_K
        if self._centres:
            W_Q, W_K = (W - W.mean(axis=-2, keepdims=True) for W in (W_Q, W_K))
        plain, turned = Rotation(self.info.d_head), self.info.facts.rotation(layer)
        unknown = bool(self.info.facts.get("query_norm")) or self.info.facts.get("position") == "unknown"
        found = np.full((len(self.info.heads), 2), np.nan)
        for place, head in enumerate(self.info.heads):
            factors = W_Q[head], W_K[self.info.kv_of_head[head]]
            known = [(plain, np.zeros(1), np.ones(1))] + ([] if unknown else [(turned, lags, counts)])
            for column, (rotation, at, p) in enumerate(known):
                numbers = form_numbers(*factors, rotation, at)
                found[place, column] = angle_share(self._width, *numbers, mean, variance, p)
        return found


def form_numbers(W_Q: Floats, W_K: Floats, rotation: Rotation, lags: Floats) -> tuple[Floats, Floats, Floats]:
    """Tr C, Tr C^2 and |C|_F^2 of C = W_Q R(-lag) W_K^T at each lag, from the d_head-sized products of the factors."""
    s = rotation.scales
    P, angles = rotation.diagonal
    Q, K = W_Q * s, W_K * s

    def seen(X: Floats) -> NDArray[np.complex128]:
        return np.asarray(P.conj().T @ X @ P)

    M, QQ, KK = seen(K.T @ Q), seen(Q.T @ Q), seen(K.T @ K)
    v = np.exp(-1j * np.asarray(lags)[:, None] * angles[None, :])
    # R = P diag(v) P^H: Tr(M R), Tr(M R M R), Tr(Q'Q R K'K R^T).
    trace = v @ np.diagonal(M)
    square = ((v @ (M * M.T)) * v).sum(axis=1)
    norm = ((v @ (KK * QQ.T)) * v.conj()).sum(axis=1)
    return trace.real, square.real, norm.real


def estimate(parameters: AnglesParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: vectors, queries and keys of all layers of a few prompts, and one layer's scores; two passes more."""
    longest = max(tokens.lengths, default=1) if tokens is not None else 1
    at_once = max(_AT_ONCE, longest)
    width = 2 * info.d_model + (len(info.heads) + len(info.kv_heads)) * info.d_head
    square = 4 * info.n_heads * longest * at_once * 4
    count = sum(tokens.lengths) if tokens is not None else 0
    seconds = 2 * 2 * count * float(info.n_parameters) / 2e10
    return Estimate(
        memory=4 * len(info.layers) * at_once * width + square,
        disk=8 * 20 * len(info.layers) * info.n_heads,
        seconds=seconds,
    )
