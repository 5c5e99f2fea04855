"""attention.swap: the model runs with heads' attention replaced by an approximation. What it loses is the judge.

Bands, top-k masks and truncated decompositions are made of the head's own pattern: they are oracles, which see the
whole map before they choose; no map of that form and storage is nearer, though another may cost the model less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from gausslens import Context, Estimate, GausslensError, ModelError, ModelInfo, Runner, Tokens, variable
from gausslens.maths.resampling import ratio_and_error

from ..maths.arrays import Bools, Floats
from ..maths.band_plus_sparse import cells, project
from ..maths.kernels import kernel_map, kernel_names
from ..maths.lowrank import scalars, truncated
from ..maths.masks import mask_of_keys
from ..maths.predictions import (
    AGREEMENT,
    HIDDEN_CHANGE,
    KL,
    LOGIT_CHANGE,
    LOSS,
    MEASURED,
    TOKENS,
    Prediction,
    compare,
)
from .patterns import double, query_and_key_sites

if TYPE_CHECKING:
    from ..parameters import SwapParameters

# Rows of a batch in which each row has another head swapped.
_AT_ONCE = 16

Maps = Mapping[int, torch.Tensor]
Replacement = Callable[..., torch.Tensor | None]


@dataclass(frozen=True)
class LayerHeads:
    """Scores and pattern [head, n, n] of heads of one layer for one prompt, as the model makes them.

    Settings that are made of queries and keys are given q and k [head, n, d] in their place.
    """

    scores: torch.Tensor
    pattern: torch.Tensor
    causal: bool
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    scale: float = 1.0

    @property
    def n(self) -> int:
        """Tokens."""
        return self.pattern.shape[-1]


@dataclass(frozen=True)
class Setting:
    """One approximation: its label and method, the map it makes [head, n, n], and what that stores on n tokens."""

    label: str
    kind: str
    make: Callable[[LayerHeads], torch.Tensor]
    stores: Callable[[int, bool], float]
    needs_queries: bool = False


def settings_of(parameters: SwapParameters, context: Context) -> list[Setting]:
    """Every setting that the parameters name."""
    p = parameters
    found = [_band(w, budget) for w in p.band for budget in p.budget]
    found += [_mask(kind, keys, p, context) for kind in p.masks for keys in p.keys]
    found += [_rank(rank) for rank in p.rank]
    return found + [_kernel(label, p, context) for label in kernel_names(p.kernels, p.features)]


def _band(w: int, budget: int) -> Setting:
    def errors(n: int, causal: bool) -> int:
        return min(budget * n, cells(n, n, causal) - cells(n, w, causal))

    def make(heads: LayerHeads) -> torch.Tensor:
        # Rows must go on summing to one: renormalising the kept cells is one of the nearest ways.
        X, _ = project(double(heads.pattern), w, errors(heads.n, heads.causal), stochastic=True)
        return torch.from_numpy(X)

    def stores(n: int, causal: bool) -> float:
        return cells(n, w, causal) + 2 * errors(n, causal)

    return Setting(f"band {w} + {budget}", "band", make, stores)


def _mask(kind: str, keys: int, parameters: SwapParameters, context: Context) -> Setting:
    def of(P: Floats, causal: bool) -> tuple[Bools, int]:
        return mask_of_keys(kind, keys, P, causal, parameters.globals, parameters.dilation, context.generator)

    def make(heads: LayerHeads) -> torch.Tensor:
        mask, _ = of(double(heads.pattern), heads.causal)
        kept = torch.from_numpy(np.array(mask)).to(heads.scores.device)
        weights = heads.scores.double().masked_fill(~kept, -torch.inf).softmax(dim=-1)
        # A row of which nothing is left stays as it is.
        return torch.where(weights.isnan(), heads.pattern.double(), weights)

    def stores(n: int, causal: bool) -> float:
        # Of a soft map: each row has as many keys as it may have.
        even = np.tril(np.ones((n, n))) if causal else np.ones((n, n))
        mask, placed = of(even, causal)
        return float(mask.sum() + placed)

    return Setting(f"{kind} {keys}", kind, make, stores)


def _rank(rank: int) -> Setting:
    def make(heads: LayerHeads) -> torch.Tensor:
        X = torch.from_numpy(truncated(double(heads.pattern), [min(rank, heads.n)])[0])
        return X.tril() if heads.causal else X

    return Setting(f"svd {rank}", "svd", make, lambda n, _: float(scalars(n, min(rank, n))))


def _kernel(label: str, parameters: SwapParameters, context: Context) -> Setting:
    def make(heads: LayerHeads) -> torch.Tensor:
        assert heads.q is not None
        assert heads.k is not None
        return kernel_map(label, heads.q, heads.k, heads.scale, heads.causal, parameters.alpha, context.generator)

    d = context.model.d_head
    wide = {"elu": d, "taylor-1": 1 + d, "taylor-2": 1 + d + d**2, "least-squares": d}
    m = wide[label] if label in wide else int(label.split()[1])
    return Setting(label, label.split()[0], make, lambda n, _: float(2 * n * m), needs_queries=True)


class Swap:
    """Runs each prompt as it is, then with each setting."""

    def __init__(self, parameters: SwapParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.info = context.model
        self.settings = settings_of(parameters, context)
        self.layers = [n for n in self.info.layers if "pattern" not in self.info.lacking.get(n, {})]

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Losses, next-token distributions and hidden states beside those of the model as it is."""
        chosen = [i for i, n in enumerate(prompts.lengths) if n > 1]
        if not chosen:
            raise GausslensError("no prompt has two tokens: give longer ones")
        sites = _sites(runner, prompts.ids[chosen[0]])
        measured = SettingCosts(self.settings, self.info, self.layers, self.parameters)
        for prompt in chosen:
            one = _Prompt(runner, sites, prompts.ids[prompt], prompts.text[prompt], self.info.causal)
            measured.begin(len(one.ids), one.compared(one.own))
            for number, setting in enumerate(self.settings):
                if "all" in self.parameters.which:
                    measured.all(number, one.compared(one.outcomes(self._all(runner, setting, one.ids))[0]))
                if "each" in self.parameters.which:
                    for layer in self.layers:
                        for head, found in self._each(runner, setting, layer, one):
                            measured.each(number, layer, head, found)
        return measured.dataset()

    def _all(self, runner: Runner, setting: Setting, ids: np.ndarray) -> Replacement:
        """A replacement of all heads in view, in every layer."""
        if not setting.needs_queries:
            return self._replacing(setting, dict.fromkeys(self.layers))
        known: dict[int, torch.Tensor] = {}
        for layer in self.layers:
            # q and k of a layer follow from what was put into those before it.
            found = runner.forward(ids[None], sites=query_and_key_sites(self.info), replace=self._placing(known))
            known[layer] = self._made(setting, layer, found)
        return self._placing(known)

    def _made(self, setting: Setting, layer: int, found: Mapping[Any, torch.Tensor]) -> torch.Tensor:
        """The maps [head, n, n] of the heads in view from q and k of a pass."""
        q, k = (found[layer, site][0].transpose(0, 1) for site in query_and_key_sites(self.info))
        heads = list(self.info.heads)
        reads = [self.info.kv_of_head[h] for h in heads]
        none = torch.empty(0)
        return setting.make(LayerHeads(none, none, self.info.causal, q[heads], k[reads], self.info.facts.scale(layer)))

    def _placing(self, known: Maps) -> Replacement:
        """Puts maps that are known into the heads in view."""
        heads = list(self.info.heads)

        def replace(layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> torch.Tensor | None:
            if layer not in known:
                return None
            new = pattern.clone()
            new[:, heads] = known[layer].to(pattern)
            return new

        return replace

    def _replacing(self, setting: Setting, where: Mapping[int, Sequence[int] | None]) -> Replacement:
        """Replaces in these layers all heads in view, or in each row of the batch the one named for it."""
        heads = list(self.info.heads)

        def replace(layer: int, scores: torch.Tensor, pattern: torch.Tensor, _v: Any) -> torch.Tensor | None:
            if layer not in where:
                return None
            rows = where[layer]
            wanted = heads if rows is None else list(rows)
            made = setting.make(LayerHeads(scores[0, wanted], pattern[0, wanted], self.info.causal)).to(pattern)
            new = pattern.clone()
            if rows is None:
                new[:, wanted] = made
            else:
                new[torch.arange(len(wanted)), wanted] = made
            return new

        return replace

    def _each(self, runner: Runner, setting: Setting, layer: int, prompt: _Prompt) -> Iterator[tuple[int, Floats]]:
        """Each head alone, and what it costs: the rows of a batch are one prompt, each with another head swapped."""
        heads = list(self.info.heads)
        maps = None
        if setting.needs_queries:
            found = runner.forward(prompt.ids[None], sites=query_and_key_sites(self.info))
            maps = self._made(setting, layer, found)
        for start in range(0, len(heads), _AT_ONCE):
            some = heads[start : start + _AT_ONCE]
            if maps is None:
                replace = self._replacing(setting, {layer: some})
            else:
                replace = _one_a_row(layer, some, maps[start : start + _AT_ONCE])
            for head, outcome in zip(some, prompt.outcomes(replace, len(some)), strict=True):
                yield head, prompt.compared(outcome)


def _one_a_row(layer: int, heads: Sequence[int], maps: torch.Tensor) -> Replacement:
    def replace(at: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> torch.Tensor | None:
        if at != layer:
            return None
        new = pattern.clone()
        new[torch.arange(len(heads)), list(heads)] = maps.to(pattern)
        return new

    return replace


def _sites(runner: Runner, ids: np.ndarray) -> tuple[str, ...]:
    """Logits where the model has a head; hidden states in any case."""
    try:
        runner.forward(ids[None, :2], sites=("logits",))
    except ModelError:
        return ("resid_post",)
    return ("logits", "resid_post")


@dataclass(frozen=True)
class _Prompt:
    """One prompt as it is run again and again, and how the model as it is does on it."""

    runner: Runner
    sites: tuple[str, ...]
    ids: np.ndarray
    text: np.ndarray
    causal: bool

    @cached_property
    def own(self) -> Prediction:
        """What the model as it is gives."""
        return self.outcomes(None)[0]

    def outcomes(self, replace: Replacement | None, rows: int = 1) -> list[Prediction]:
        """What each row of a batch of this prompt gives."""
        found = self.runner.forward(np.tile(self.ids, (rows, 1)), sites=self.sites, replace=replace)
        last = max(key[0] for key in found if isinstance(key, tuple))
        hidden, logits = found[last, "resid_post"], found.get("logits")
        return [Prediction(hidden[row], None if logits is None else logits[row]) for row in range(rows)]

    def compared(self, outcome: Prediction) -> Floats:
        """What is measured of an outcome, beside the model's own."""
        return compare(outcome, self.own, self.ids, self.text, self.causal)


class SettingCosts:
    """Gathers what each setting costs, over prompts."""

    def __init__(
        self, settings: Sequence[Setting], info: ModelInfo, layers: Sequence[int], parameters: SwapParameters
    ) -> None:
        self.settings, self.info, self.layers, self.parameters = settings, info, list(layers), parameters
        self.lengths: list[int] = []
        self.own: list[Floats] = []
        self.of_all: list[Floats] = []
        self.of_each: list[Floats] = []

    def begin(self, length: int, own: Floats) -> None:
        """The next prompt: its length, and how the model as it is does."""
        self.lengths.append(length)
        self.own.append(own)
        self.of_all.append(np.full((len(self.settings), MEASURED), np.nan))
        shape = (len(self.settings), len(self.layers), len(self.info.heads), MEASURED)
        self.of_each.append(np.full(shape, np.nan))

    def all(self, setting: int, found: Floats) -> None:
        """All heads in view swapped."""
        self.of_all[-1][setting] = found

    def each(self, setting: int, layer: int, head: int, found: Floats) -> None:
        """One head swapped."""
        self.of_each[-1][setting, self.layers.index(layer), self.info.heads.index(head)] = found

    def dataset(self) -> xr.Dataset:
        """Variables [setting] and [setting, layer, head]."""
        own = np.stack(self.own)
        stores = np.array([np.mean([s.stores(n, self.info.causal) for n in self.lengths]) for s in self.settings])
        text = "stored scalars of one head's map, mean over prompts"
        variables: dict[str, Any] = {"scalars": variable("setting", stores, text, against=False)}
        if not np.isnan(own[:, LOSS]).any():
            base = own[:, LOSS].sum() / own[:, TOKENS].sum()
            variables["loss_whole"] = variable((), base, "mean loss of a token, the model as it is", "nat")
        kinds = list(dict.fromkeys(s.kind for s in self.settings))
        judge = "loss_change" if "loss_whole" in variables else "hidden_change"
        if "all" in self.parameters.which:
            made = _means(np.stack(self.of_all), own, ("setting",), "")
            variables |= made
            variables["scalars_needed"] = self._needed(judge, made[judge][1], stores, kinds)
        if "each" in self.parameters.which:
            variables |= _means(np.stack(self.of_each), own, ("setting", "layer", "head"), "_each")
        coords: dict[str, Any] = {
            "setting": [s.label for s in self.settings],
            "setting_kind": ("setting", [s.kind for s in self.settings]),
            "layer": self.layers,
            "head": list(self.info.heads),
            "kind": kinds,
        }
        used = {dim for one in variables.values() for dim in one[0]}
        coords = {name: values for name, values in coords.items() if name.startswith("setting") or name in used}
        notes = {"judge": judge, "tolerance": self.parameters.tolerance, "prompts": len(self.own)}
        return xr.Dataset(variables, coords=coords, attrs=notes)

    def _needed(self, judge: str, change: Floats, stores: Floats, kinds: Sequence[str]) -> tuple[Any, ...]:
        within = np.where(change <= self.parameters.tolerance, stores, np.inf)
        least = [min(w for w, s in zip(within, self.settings, strict=True) if s.kind == m) for m in kinds]
        what = "loss" if judge == "loss_change" else "last residual stream"
        text = f"least stored scalars that change the {what} by at most {self.parameters.tolerance:g} (NaN: none do)"
        return variable("kind", np.where(np.isfinite(least), least, np.nan), text)


def _means(found: Floats, own: Floats, dims: tuple[str, ...], suffix: str) -> dict[str, Any]:
    """Means over tokens and prompts of [prompt, *dims, measure], beside the model's own [prompt, measure]."""
    change = found[..., HIDDEN_CHANGE].mean(axis=0)
    made: dict[str, Any] = {
        f"hidden_change{suffix}": variable(dims, change, "change of the last residual stream, relative")
    }
    if np.isnan(own[:, TOKENS]).any():
        return made
    tokens = own[:, TOKENS].sum()
    texts = {
        "kl": (KL, "divergence of next-token distributions from the model's own", "nat"),
        "agreement": (AGREEMENT, "share of tokens at which the likeliest next token stays", "1"),
    }
    for name, (place, text, units) in texts.items():
        made[f"{name}{suffix}"] = variable(dims, found[..., place].sum(axis=0) / tokens, text, units)
    largest = found[..., LOGIT_CHANGE].max(axis=0)
    made[f"logit_change{suffix}"] = variable(dims, largest, "largest change of a logit")
    if not np.isnan(own[:, LOSS]).any():
        made |= _losses(found[..., LOSS], own, dims, suffix)
    return made


def _losses(losses: Floats, own: Floats, dims: tuple[str, ...], suffix: str) -> dict[str, Any]:
    """Loss and its relative change; the standard error is that over prompts of the paired difference."""
    tokens = own[:, TOKENS]
    base = own[:, LOSS].sum() / tokens.sum()
    loss = losses.sum(axis=0) / tokens.sum()
    _, error = ratio_and_error(losses - own[:, LOSS].reshape(-1, *(1,) * (losses.ndim - 1)), tokens)
    return {
        f"loss{suffix}": variable(dims, loss, "mean loss of a token", "nat"),
        f"loss_change{suffix}": variable(dims, loss / base - 1, "change of the loss, relative to the model's own"),
        f"loss_change_se{suffix}": variable(
            dims, error / base, "standard error of that change, over prompts (NaN: one prompt)", against=False
        ),
    }


def estimate(parameters: SwapParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: the hidden states of all layers and the logits of the rows that run at once."""
    longest = max(tokens.lengths, default=0) if tokens is not None else 0
    rows = min(_AT_ONCE, len(info.heads)) if "each" in parameters.which else 1
    wide = info.n_layers * info.d_model + 3 * info.vocabulary + 2 * info.n_heads * longest
    return Estimate(memory=4 * rows * longest * wide)
