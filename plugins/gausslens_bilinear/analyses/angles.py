"""bilinear.angles: does the angle between two tokens' vectors reach the score between them, and the pattern?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens, variable
from gausslens.maths.rotary import Rotation

from ..maths.attention_rows import HIDDEN
from ..maths.correlations import KINDS, Correlations
from ..maths.spheres import angle_share

if TYPE_CHECKING:
    import torch

    from gausslens import LayerWeights

    from ..parameters import AnglesParameters

Floats: TypeAlias = NDArray[np.float64]
# Positions of a prompt that a map has.
_MAP_POSITIONS = 128
# Tokens of one forward pass: what is held of it is that of all layers.
_AT_ONCE = 512
_WORDS = {
    "content": "content form <W_q x, W_k y>/sqrt(d_head)",
    "score": "true score",
    "pattern": "attention pattern",
}


@dataclass(frozen=True)
class _Prompt:
    """One prompt at one layer: vectors and their queries and keys [position, ...], and which tokens count."""

    x: Floats
    q: NDArray[Any]
    k: NDArray[Any]
    counted: NDArray[np.bool_]
    number: int


class Angles:
    """Runs the model twice on each prompt: for the vectors of every layer, then past its scores, layer by layer."""

    def __init__(self, parameters: AnglesParameters, context: Context) -> None:
        self.parameters, self.info = parameters, context.model

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Correlations of cosine with content form, score and pattern, and the share that theory predicts."""
        layers: dict[int, Correlations] = defaultdict(lambda: Correlations(len(self.info.heads)))
        maps = TokenMaps(prompts, self.parameters.maps)
        for shard in prompts.shards(_AT_ONCE):
            ids, text, mask = prompts.padded(shard)
            counted = text & mask
            counted[:, 0] = False
            vectors = self._vectors(runner, ids, mask)
            seen: dict[int, list[_Prompt]] = {}
            for layer, (x, q, k) in vectors.items():
                rows = range(len(shard))
                seen[layer] = [_Prompt(x[i], q[i], k[i], counted[i], int(shard[i])) for i in rows]

            def look(
                layer: int, scores: torch.Tensor, pattern: torch.Tensor, _: torch.Tensor, seen: Any = seen
            ) -> None:
                for place, one in enumerate(seen.get(layer, ())):
                    score, attended = (a[place].float().cpu().numpy() for a in (scores, pattern))
                    self._add(layers[layer], layer, one, score, attended)
                    maps.add(one.number, layer, one.x @ one.x.T, attended, score[self.info.heads[0]] > HIDDEN)

            runner.forward(ids, sites=("resid_pre",), replace=look, mask=mask)
        if not layers or not any(one.pairs for one in layers.values()):
            raise GausslensError(
                f"bilinear.angles: {self.info.name} attends to no pair of text tokens in these prompts"
            )
        return self._described(layers, runner).assign(maps.variables(sorted(layers), runner))

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

    def _add(self, into: Correlations, layer: int, one: _Prompt, scores: NDArray[Any], pattern: NDArray[Any]) -> None:
        """All pairs of different tokens that count and can be seen."""
        n = len(one.counted)
        pairs = (
            one.counted[:, None] & one.counted[None, :] & (scores[self.info.heads[0]] > HIDDEN) & ~np.eye(n, dtype=bool)
        )
        rows = np.flatnonzero(pairs.any(axis=1))
        if not len(rows):
            return
        lags = np.arange(n)[:, None] - np.arange(n)[None, :]
        into.take_cosines(one.number, (one.x @ one.x.T)[rows], pairs[rows], lags[rows])
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
                name = f"{kind}_correlation{end}"
                variables[name] = variable(dims, values, text)
                variables[f"{name}_error"] = variable(dims, errors, f"standard error of the {text}", against=False)
        for kind in ("content", "score"):
            text = f"share of the variance of the {_WORDS[kind]} that the angle explains"
            measured = variables[f"{kind}_correlation"][1] ** 2
            variables[f"{kind}_share"] = variable(dims, measured, f"{text}: measured")
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
            variables[name] = variable(dims, values, text, against=False)
        means, spreads = zip(*(layers[n].cosines() for n in order), strict=True)
        for name, one in (("mean", np.array(means)), ("sd", np.sqrt(spreads))):
            variables[f"cosine_{name}"] = variable("layer", one, f"{name} of the cosines")
        coords = {"layer": order, "head": list(self.info.heads)}
        return xr.Dataset(variables, coords=coords).assign_attrs(model=self.info.name, between=self.parameters.between)

    @property
    def _centres(self) -> bool:
        """Whether what a layer reads has mean 0: then it fills one dimension less."""
        return self.info.facts.norm == "layer" and self.info.facts.norm_first

    @property
    def _width(self) -> int:
        """Of the space that the vectors fill."""
        return self.info.d_model - self._centres

    def _predicted(self, weights: LayerWeights, layer: int, seen: Correlations) -> Floats:
        """Predicted shares [head, 2] of content form and score, from the head's C at each lag that was seen."""
        mean, variance = seen.cosines()
        lags, counts = seen.lags()
        W_Q, W_K = (weights[n].detach().cpu().double().numpy() for n in ("W_Q", "W_K"))
        if "ln1.w" in weights and self.info.facts.norm_first:
            gain = weights["ln1.w"].detach().cpu().double().numpy()[:, None]
            W_Q, W_K = gain * W_Q, gain * W_K
        if self._centres:
            W_Q, W_K = (W - W.mean(axis=-2, keepdims=True) for W in (W_Q, W_K))
        facts = self.info.facts
        known = [(Rotation(self.info.d_head), np.zeros(1), np.ones(1))]
        # Where q and k have norms of their own, weights do not tell the score.
        if not facts.query_norm:
            known.append((facts.rotation(layer), lags, counts))
        found = np.full((len(self.info.heads), 2), np.nan)
        for place, head in enumerate(self.info.heads):
            factors = W_Q[head], W_K[self.info.kv_of_head[head]]
            for column, (rotation, at, p) in enumerate(known):
                numbers = form_numbers(*factors, rotation, at)
                found[place, column] = angle_share(self._width, *numbers, mean, variance, p)
        return found


class TokenMaps:
    """Maps of the first prompts, layer by layer: the cosine of each pair of tokens, and the attention between them."""

    def __init__(self, prompts: Tokens, maps: int) -> None:
        self.prompts = prompts
        self.longest = [min(length, _MAP_POSITIONS) for length in prompts.lengths[:maps]]
        self.seen: dict[tuple[int, int], tuple[NDArray[Any], NDArray[Any]]] = {}

    def add(self, prompt: int, layer: int, cosine: Floats, pattern: NDArray[Any], visible: NDArray[np.bool_]) -> None:
        """Of one prompt at one layer [query, key]; what a query cannot see is left empty in both."""
        if prompt >= len(self.longest):
            return
        n = self.longest[prompt]
        attended = pattern[:, :n, :n].mean(axis=0)
        made = (np.where(visible[:n, :n], values, np.nan) for values in (cosine[:n, :n], attended))
        one, other = (values.astype(np.float32) for values in made)
        self.seen[prompt, layer] = one, other

    def variables(self, layers: Sequence[int], runner: Runner) -> dict[str, Any]:
        """Variables [map, layer, query, key], padded with NaN, and the text of the tokens [map, query]."""
        if not self.longest:
            return {}
        n = max(self.longest)
        maps = np.full((2, len(self.longest), len(layers), n, n), np.nan, dtype=np.float32)
        text = np.full((len(self.longest), n), "", dtype=object)
        for prompt, length in enumerate(self.longest):
            text[prompt, :length] = [runner.decode([int(i)]) for i in self.prompts.ids[prompt][:length]]
            for place, layer in enumerate(layers):
                for which, values in enumerate(self.seen.get((prompt, layer), ())):
                    maps[which, prompt, place, :length, :length] = values
        said = ("cosine between the vectors of query and key", "attention, mean over heads")
        made = {
            name: variable(("map", "layer", "query", "key"), values, words, against=False)
            for name, values, words in zip(("cosine_map", "attention_map"), maps, said, strict=True)
        }
        return made | {"map_text": variable(("map", "query"), text, "token")}


def form_numbers(W_Q: Floats, W_K: Floats, rotation: Rotation, lags: Floats) -> tuple[Floats, Floats, Floats]:
    """Tr C, Tr C^2 and |C|_F^2 of C = W_Q R(-lag) W_K^T at each lag, from the d_head-sized products of the factors."""
    s = rotation.scales
    P, angles = rotation.diagonal
    Q, K = W_Q * s, W_K * s

    def turned(X: Floats) -> NDArray[np.complex128]:
        return np.asarray(P.conj().T @ X @ P)

    M, QQ, KK = turned(K.T @ Q), turned(Q.T @ Q), turned(K.T @ K)
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
