"""bilinear.angles: does the angle between two tokens' vectors reach the score between them, and the pattern?

Content is the form that scores see, but for position: of q and k behind their norms, where they have norms. What is
predicted is of the effective forms (``gausslens.maths.effective_forms``): gains and biases in, 1/rms of q and k taken
for constants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens, variable
from gausslens.maths.effective_forms import bias_numbers, effective, form_numbers
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
    "content_raw": "content form of q and k before their norms",
}


@dataclass(frozen=True)
class _Prompt:
    """One prompt at one layer: vectors [position, d_model], their queries and keys, and which tokens count.

    ``pairs`` are (q, k) [position, head, d_head] as they meet but for position, and those before their norms, if any.
    """

    x: Floats
    pairs: tuple[tuple[NDArray[Any], NDArray[Any]], ...]
    counted: NDArray[np.bool_]
    number: int


class Angles:
    """Runs the model twice on each prompt: for the vectors of every layer, then past its scores, layer by layer."""

    def __init__(self, parameters: AnglesParameters, context: Context) -> None:
        self.parameters, self.info = parameters, context.model
        # The sites of (q, k): as they meet but for position, and before their norms where that is something else.
        self.sites = tuple(dict.fromkeys((self.info.facts.content_sites, ("q", "k"))))
        # Of each layer without a norm before it: the sum of squared lengths of what it reads, and of how many tokens.
        self.lengths: dict[int, tuple[float, int]] = {}

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Correlations of cosine with content form, score and pattern, and the share that theory predicts."""
        runner = runner.whole
        kinds = 2 + len(self.sites)
        layers: dict[int, Correlations] = defaultdict(lambda: Correlations(len(self.info.heads), kinds))
        maps = TokenMaps(prompts, self.parameters.maps)
        for shard in prompts.shards(_AT_ONCE):
            ids, text, mask = prompts.padded(shard)
            counted = text & mask
            counted[:, 0] = False
            seen: dict[int, list[_Prompt]] = {}
            beside = prompts.beside(shard)
            for layer, (x, pairs) in self._vectors(runner, ids, mask, counted, beside).items():
                rows = range(len(shard))
                each = [tuple((q[i], k[i]) for q, k in pairs) for i in rows]
                seen[layer] = [_Prompt(x[i], each[i], counted[i], int(shard[i])) for i in rows]

            def look(
                layer: int, scores: torch.Tensor, pattern: torch.Tensor, _: torch.Tensor, seen: Any = seen
            ) -> None:
                for place, one in enumerate(seen.get(layer, ())):
                    score, attended = (a[place].float().cpu().numpy() for a in (scores, pattern))
                    self._add(layers[layer], layer, one, score, attended)
                    maps.add(one.number, layer, one.x @ one.x.T, attended, score[self.info.heads[0]] > HIDDEN)

            runner.forward(ids, sites=("resid_pre",), replace=look, mask=mask, **beside)
        if not layers or not any(one.pairs for one in layers.values()):
            raise GausslensError(
                f"bilinear.angles: {self.info.name} attends to no pair of text tokens in these prompts"
            )
        return self._described(layers, runner).assign(maps.variables(sorted(layers), runner))

    def _vectors(
        self,
        runner: Runner,
        ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        counted: NDArray[np.bool_],
        beside: dict[str, Any],
    ) -> dict[int, tuple[Floats, tuple[tuple[NDArray[Any], NDArray[Any]], ...]]]:
        """Of each layer in view with attention: unit vectors and pairs of queries and keys [prompt, position, ...]."""
        embedded, facts = self.parameters.between == "embeddings", self.info.facts
        asked = tuple(site for pair in self.sites for site in pair)
        found = runner.forward(ids, sites=(*asked, "embed" if embedded else "resid_pre"), mask=mask, **beside)
        vectors = {}
        for layer in self.info.layers:
            if (layer, asked[0]) in found:
                x = (found["embed"] if embedded else found[layer, "resid_pre"]).double().cpu().numpy()
                held = {site: found[layer, site].float().cpu().numpy() for site in asked}
                content = tuple(facts.content(held[site], layer) for site in self.sites[0])
                raw = tuple((held[q], held[k]) for q, k in self.sites[1:])
                total, count = self.lengths.get(layer, (0.0, 0))
                self.lengths[layer] = total + float((x[counted] ** 2).sum()), count + int(counted.sum())
                vectors[layer] = (self._directions(x), ((content[0], content[1]), *raw))
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
            content, *raw = (self.info.facts.scale(layer) * (q[:, head] @ k[:, key].T)[rows] for q, k in one.pairs)
            into.add(place, content, scores[head][rows], pattern[head][rows], *raw)

    def _described(self, layers: dict[int, Correlations], runner: Runner) -> xr.Dataset:
        order = sorted(layers)
        dims = ("layer", "head")
        variables: dict[str, Any] = {}
        found = {layer: layers[layer].correlations() for layer in order}
        kinds = KINDS[: 2 + len(self.sites)]
        for i, kind in enumerate(kinds):
            for j, (end, where) in enumerate((("", "over all pairs"), ("_within", "within the keys of a query"))):
                text = f"correlation of the angle's cosine with the {_WORDS[kind]}, {where}"
                values = np.stack([found[layer][0][:, i, j] for layer in order])
                errors = np.stack([found[layer][1][:, i, j] for layer in order])
                name = f"{kind}_correlation{end}"
                variables[name] = variable(dims, values, text)
                variables[f"{name}_error"] = variable(dims, errors, f"standard error of the {text}", against=False)
        for kind in (kind for kind in kinds if kind != "pattern"):
            text = f"share of the variance of the {_WORDS[kind]} that the angle explains"
            measured = variables[f"{kind}_correlation"][1] ** 2
            variables[f"{kind}_share"] = variable(dims, measured, f"{text}: measured")
        predicted = np.array([self._predicted(runner.weights(n), n, layers[n]) for n in order])
        random = np.array([[layers[n].cosines()[1] / self._width] * len(self.info.heads) for n in order])
        given = "as this head's weights and turned vectors give"
        for name, values, how in (
            ("content_share_predicted", predicted[..., 0], f"content form, {given}"),
            ("score_share_predicted", predicted[..., 1], f"true score, {given}"),
            ("content_raw_share_predicted", predicted[..., 2], f"content form, {given}, without gains and biases"),
            ("share_untied", random, "content form, as untied random weights would give: Var(cosine)/d_model"),
        ):
            text = f"share of the variance that the angle explains of the {how}"
            variables[name] = variable(dims, values, text, against=False)
        means, spreads = zip(*(layers[n].cosines() for n in order), strict=True)
        for name, one in (("mean", np.array(means)), ("sd", np.sqrt(np.maximum(spreads, 0.0)))):
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
        """Predicted shares [head, 3]: content form, score from the head's C at each lag that was seen, raw content."""
        mean, variance = seen.cosines()
        lags, counts = seen.lags()
        facts = self.info.facts
        forms = effective(weights, facts.scoring(layer))
        query, key = forms.qk()
        W_Q, W_K = (weights[n].detach().cpu().double().numpy() for n in ("W_Q", "W_K"))
        if self._centres:
            W_Q, W_K = (W - W.mean(axis=-2, keepdims=True) for W in (W_Q, W_K))
        still = Rotation(self.info.d_head), np.zeros(1)
        # A norm makes vectors of this length; without one, they have the length that they have.
        total, count = self.lengths[layer]
        length = self.info.d_model**0.5 if facts.norm_first else (total / max(count, 1)) ** 0.5
        found = np.full((len(self.info.heads), 3), np.nan)
        for place, head in enumerate(self.info.heads):
            row = weights.heads.index(head)
            raw = form_numbers(W_Q[row], W_K[weights.kv_of_head[row]], *still)
            found[place, 2] = angle_share(self._width, *raw, mean, variance)
            # The shift of a norm of q or k is beside what the weights tell.
            if query.shift is not None or key.shift is not None:
                continue
            for column, (rotation, at, p) in enumerate(((*still, np.ones(1)), (facts.rotation(layer), lags, counts))):
                numbers = form_numbers(query.W[row], key.W[row], rotation, at)
                u, v, mixed, c = bias_numbers(query, key, row, rotation, at)
                biases = u / length**2, v / length**2, mixed / length**2, c / length**2
                found[place, column] = angle_share(self._width, *numbers, mean, variance, p, biases)
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


def estimate(parameters: AnglesParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: vectors, queries and keys of all layers of a few prompts, and one layer's scores; two passes more."""
    longest = max(tokens.lengths, default=1) if tokens is not None else 1
    at_once = max(_AT_ONCE, longest)
    # Where q and k have norms, those before them are held too.
    pairs = 2 if info.facts.get("query_norm") is True else 1
    width = 2 * info.d_model + pairs * (len(info.heads) + len(info.kv_heads)) * info.d_head
    square = 4 * info.n_heads * longest * at_once * 4
    count = sum(tokens.lengths) if tokens is not None else 0
    seconds = 2 * 2 * count * float(info.n_parameters) / 2e10
    return Estimate(
        memory=4 * len(info.layers) * at_once * width + square,
        disk=8 * 20 * len(info.layers) * info.n_heads,
        seconds=seconds,
    )
