"""sae.features: what an autoencoder does with vectors that it need not have seen: density, dead features, top tokens.

For each feature, over the tokens that count: density, the share at which it fires; its mean strength where it does; and
the tokens at which it fires most. For each layer: variance explained, features that fire at once, dead and dense
features, and how much of a feature's top tokens are one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import Batch, Context, InputError, Request, StepRef, merge_each, variable
from gausslens.maths.moments import arrays_of, put_each

from .statistics import Firings, Spread, best, explained
from .vectors import chosen, counted, dataset, hold, of_layer, of_training, vectors

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from .parameters import FeaturesParameters

COMPARED = {
    "variance_explained": "variance explained, 1 - residual over total variance",
    "l0": "mean number of features that fire at once",
    "dead": "share of features that never fire",
    "dense": "share of features that fire often",
    "one_token": "share of a feature's top tokens that are one token, mean over features",
}


@dataclass
class Seen:
    """What a layer's autoencoder made of the tokens seen so far."""

    most: int
    fired: NDArray[np.int64]  # [feature]
    strength: NDArray[np.float64]  # [feature], summed
    spread: Spread = field(default_factory=Spread)
    residual: float = 0.0
    top: Firings = field(default_factory=Firings)

    def merge(self, other: Seen) -> None:
        self.fired = self.fired + other.fired
        self.strength = self.strength + other.strength
        self.residual += other.residual
        self.spread.merge(other.spread)
        self.top = best(self.top.and_those_of(other.top), self.most)


class Features:
    """A ``Seen`` for each layer."""

    def __init__(self, parameters: FeaturesParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context
        self.layers: dict[int, Seen] = {}

    def inputs(self, steps: Sequence[StepRef]) -> Sequence[StepRef]:
        return chosen(steps, self.parameters.of, self.context)

    def request(self) -> Request:
        return Request(sites=(self.parameters.site,))

    def update(self, batch: Batch) -> None:
        assert batch.layer is not None
        trained, label = of_training(self.context.inputs)
        facts = trained["decoder"].attrs
        if facts["site"] != self.parameters.site:
            said = f"give this step with: {{site: {facts['site']}}}"
            raise InputError(f"{label} is an autoencoder of {facts['site']}: {said}")
        hold(trained, self.context.model, label)
        sae, ball = of_layer(trained, batch.layer, label, batch[self.parameters.site].device)
        here = counted(batch.text, int(facts["after"]))
        x = vectors(batch, self.parameters.site, here)
        near = ball.holds(x)
        x, places = x[near], here.nonzero()[near].cpu().numpy()
        codes = sae.encode(x)
        sample, feature = codes.nonzero(as_tuple=True)
        values = codes[sample, feature].double().cpu().numpy()
        rows, columns = sample.cpu().numpy(), feature.cpu().numpy()
        seen = Seen(
            most=self.parameters.top,
            fired=np.bincount(columns, minlength=codes.shape[1]),
            strength=np.bincount(columns, weights=values, minlength=codes.shape[1]).astype(np.float64),
            residual=float((x - sae.decode(codes)).double().square().sum()),
        )
        seen.spread.add(x.double().cpu().numpy())
        firings = Firings(columns, values, np.asarray(batch.prompts)[places[rows, 0]], places[rows, 1])
        seen.top = best(firings, self.parameters.top)
        merge_each(self.layers, {batch.layer: seen})

    def merge(self, other: Features) -> None:
        merge_each(self.layers, other.layers)

    def state(self) -> Mapping[str, NDArray[Any]]:
        return arrays_of(self.layers)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        nothing = np.zeros(0)
        self.layers = put_each(lambda: Seen(self.parameters.top, nothing.astype(np.int64), nothing), state)

    def result(self) -> xr.Dataset:
        layers = sorted(self.layers)
        if not any(seen.spread.n for seen in self.layers.values()):
            raise InputError("no prompt has text where the autoencoder was trained to read: give longer prompts")
        told = [self._told(self.layers[layer]) for layer in layers]
        made: dict[str, Any] = {
            name: variable("layer", [one[name] for one in told], words) for name, words in COMPARED.items()
        }
        by_feature = {"density": "share of tokens at which it fires", "strength": "mean strength where it fires"}
        for name, words in by_feature.items():
            made[name] = variable(("layer", "feature"), np.stack([one[name] for one in told]), words)
        by_token = {"top_strength": "strength at its top tokens", "top_text": "its top tokens in their context"}
        for name, words in by_token.items():
            made[name] = variable(("layer", "feature", "top"), np.stack([one[name] for one in told]), words)
        return dataset(made, layers)

    def _told(self, seen: Seen) -> dict[str, Any]:
        n, most = seen.spread.n, self.parameters.top
        with np.errstate(invalid="ignore", divide="ignore"):
            density = seen.fired / np.float64(n)
            strength = seen.strength / seen.fired
        shape = (len(seen.fired), most)
        top, text, token = np.full(shape, np.nan), np.full(shape, "", dtype=object), np.full(shape, -1)
        for rank, one in zip(seen.top.ranks(), range(len(seen.top.feature)), strict=True):
            at = seen.top.feature[one], rank
            prompt, position = int(seen.top.prompt[one]), int(seen.top.position[one])
            top[at], text[at], token[at] = seen.top.value[one], *self._read(prompt, position)
        return {
            "variance_explained": explained(seen.residual / n, seen.spread.variance()) if n else np.nan,
            "l0": density.sum(),
            "dead": (density == 0).mean(),
            "dense": (density > self.parameters.dense).mean(),
            "one_token": one_token(token),
            "density": density,
            "strength": strength,
            "top_strength": top,
            "top_text": text,
        }

    def _read(self, prompt: int, position: int) -> tuple[str, int]:
        """A token in its context, and its number."""
        assert self.context.tokens is not None
        pieces, around = self.context.tokens.pieces[prompt], self.parameters.context
        before = "".join(pieces[max(0, position - around) : position])
        behind = "".join(pieces[position + 1 : position + 1 + around])
        return f"{before}«{pieces[position]}»{behind}", int(self.context.tokens.ids[prompt][position])


def one_token(token: NDArray[Any]) -> float:
    """The largest share of one token among top tokens [feature, top] (-1: none), mean over features."""
    full = token[(token >= 0).all(axis=1)]
    if not len(full):
        return float("nan")
    alike = (full[:, :, None] == full[:, None, :]).mean(axis=2)
    return float(alike.max(axis=1).mean())
