"""bilinear.energy: is attention a step down the energy of each query? By head, and of a layer's heads together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens, variable
from gausslens.maths.effective_forms import Effective, effective
from gausslens.maths.resampling import mean_and_error

from ..maths.energy import descent, energy_change, read_by, scores_of, written_by_heads

if TYPE_CHECKING:
    from gausslens import LayerWeights

    from ..parameters import EnergyParameters

Floats: TypeAlias = NDArray[np.float64]
# What heads write must add up to what attention adds, up to this share of its length.
_ADDS_UP = 1e-2
_BY_HEAD = {
    "cosine": ("cosine of what a head writes with the descent of its energy; 1: a step of gradient descent", "1"),
    "change": ("change of a head's energy by what it writes", "nat"),
    "random_change": ("change of a head's energy by a step as long in a random direction", "nat"),
    "steepest_change": ("change of a head's energy by a step as long down its gradient", "nat"),
    "lowered": ("share of tokens whose energy a head lowers by what it writes", "1"),
    "change_by_all": ("change of a head's energy by what all of attention adds", "nat"),
}
_BY_LAYER = {
    "layer_cosine": ("cosine of what attention adds with the descent of the energy of all heads", "1"),
    "layer_change": ("change of the energy of all heads by what attention adds", "nat"),
}
_WITH_ERRORS = ("cosine", "change", "layer_cosine", "layer_change")


class Energy:
    """Runs each prompt once, and moves the queries of each layer by what its heads write; keys stay."""

    def __init__(self, parameters: EnergyParameters, context: Context) -> None:
        self.parameters, self.context, self.info = parameters, context, context.model

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Means over the text tokens of each prompt, and over prompts."""
        runner = runner.whole  # what heads write adds up to what attention adds with all of them
        if not runner.info.facts.scoring_is_known:
            raise GausslensError(
                f"bilinear.energy: the loader of {self.info.name} does not tell how scores are made, and none can be "
                "made anew"
            )
        layers = [n for n in self.info.layers if "pattern" not in self.info.lacking.get(n, {})]
        seen: dict[int, list[dict[str, Floats]]] = {n: [] for n in layers}
        for prompt in range(len(prompts)):
            rows = np.flatnonzero(prompts.text[prompt])
            rows = rows[rows > 0]  # the first token has one key
            if len(rows):
                self._prompt(runner, prompts, prompt, torch.from_numpy(rows), seen)
        if not layers or not seen[layers[0]]:
            raise GausslensError(
                f"bilinear.energy on {self.info.name}: no prompt has a text token after its first position; give "
                "longer prompts"
            )
        return self._described(layers, seen)

    def _prompt(
        self, runner: Runner, prompts: Tokens, prompt: int, rows: torch.Tensor, seen: dict[int, list[dict[str, Floats]]]
    ) -> None:
        key_site = _key_site(runner.info)
        sites = ("resid_pre", key_site, "pattern", "z", "attn_out")
        found = runner.forward(prompts.ids[prompt][None], sites=sites, **prompts.beside([prompt]))
        for layer, kept in seen.items():
            held = {site: found[layer, site][0].detach().cpu().double() for site in sites}
            one = _Layer(
                runner.weights(layer), effective(runner.weights(layer), self.info.facts.scoring(layer)), held[key_site]
            )
            drawn = self.context.generator(f"layer {layer}, prompt {prompt}")
            kept.append(self._measured(one, held, rows, drawn))

    def _measured(
        self, layer: _Layer, held: dict[str, torch.Tensor], rows: torch.Tensor, drawn: np.random.Generator
    ) -> dict[str, Floats]:
        x, pattern, added = held["resid_pre"], held["pattern"], held["attn_out"]
        steps = layer.written(held["z"], added)
        down, scores = descent(read_by(x, layer.form.scoring), layer.keys, pattern, layer.form)
        length = steps.norm(dim=-1, keepdim=True)
        random = torch.from_numpy(drawn.standard_normal(x.shape))
        taken = {
            "change": steps,
            "random_change": length * _unit(random),
            "steepest_change": length * _unit(down),
        }
        found: dict[str, torch.Tensor] = {"cosine": (_unit(steps) * _unit(down)).sum(-1)}
        for name, each in taken.items():
            moved = [layer.scores(x + step)[head] for head, step in enumerate(each)]
            found[name] = layer.change(pattern, scores, torch.stack(moved))
        found["lowered"] = (found["change"] < 0).double()
        found["change_by_all"] = layer.change(pattern, scores, layer.scores(x + added))
        found["layer_cosine"] = (_unit(added) * _unit(down.sum(0))).sum(-1)
        found["layer_change"] = found["change_by_all"].sum(0)
        return {name: values[..., rows].mean(-1).numpy() for name, values in found.items()}

    def _described(self, layers: list[int], seen: dict[int, list[dict[str, Floats]]]) -> xr.Dataset:
        """Variables [layer, head] and [layer], means over prompts, with errors over prompts."""
        heads, made = list(self.info.heads), dict[str, Any]()
        for name, (text, units) in (_BY_HEAD | _BY_LAYER).items():
            of_heads = name in _BY_HEAD
            values = np.stack([np.stack([one[name] for one in seen[n]]) for n in layers], axis=1)
            values = values[..., heads] if of_heads else values
            dims = ("layer", "head") if of_heads else ("layer",)
            mean, error = mean_and_error(values)
            made[name] = variable(dims, mean, text, units)
            if name in _WITH_ERRORS:
                said = f"standard error over prompts of: {text} (NaN: one prompt)"
                made[f"{name}_se"] = variable(dims, error, said, units, against=False)
        dataset = xr.Dataset(made, coords={"layer": layers, "head": heads})
        return dataset.assign_attrs(
            model=self.info.name,
            prompts=len(seen[layers[0]]),
            energy="-log sum over keys of exp(score), keys as they are",
        )


class _Layer:
    """One layer, as queries are moved in it."""

    def __init__(self, weights: LayerWeights, form: Effective, keys: torch.Tensor) -> None:
        self.weights, self.form, self.keys = weights, form, keys

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [head, query, key] of a stream whose keys stay where they were."""
        return scores_of(read_by(x, self.form.scoring), self.keys, self.form)

    def change(self, pattern: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Energy after less energy before [head, query]."""
        return energy_change(pattern, before, after, "sinks" in self.weights)

    def written(self, z: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """What each head adds [head, query, d_model]."""
        bias = z.new_zeros(added.shape[-1])
        if "b_O" in self.weights:
            bias = self.weights["b_O"].detach().cpu().double()
            bias = bias * self.weights["ln1_post.w"].detach().cpu().double() if "ln1_post.w" in self.weights else bias
        each, off = written_by_heads(z, added, self.form, bias)
        if off > _ADDS_UP:
            raise GausslensError(
                f"bilinear.energy: what the heads of layer {self.weights.layer} write does not add up to what "
                f"attention adds ({off:.2g} of it is left): something stands between them that its tensors do not tell"
            )
        return each


def _key_site(model: ModelInfo) -> str:
    """Where keys are as they meet queries: after their norms and position, in models that apply these to them."""
    facts = model.facts
    return "k_rot" if facts.position == "rotary" or facts.query_norm else "k"


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1; those of length 0 stay."""
    found: torch.Tensor = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
    return found


def estimate(parameters: EnergyParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: all sites of one prompt, and the vectors and scores of a layer's heads; time: queries made anew."""
    if tokens is None:
        return Estimate()
    n, heads = max(tokens.lengths, default=0), info.n_heads
    sites = 4 * info.n_layers * n * (2 * info.d_model + 3 * heads * info.d_head + heads * n)
    layer = 8 * heads * (6 * n * info.d_model + 6 * n * n)
    each = sum(8 * heads * k * info.d_model * heads * info.d_head for k in tokens.lengths)
    return Estimate(
        memory=sites + layer, disk=8 * info.n_layers * (heads * 10 + 8), seconds=info.n_layers * each / 1e10
    )
