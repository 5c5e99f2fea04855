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

from gausslens import Context, Estimate, GausslensError, ModelError, ModelInfo, Runner, Tokens

from ..maths.arrays import Floats
from ..maths.kernels import kernel_names
from ..maths.predictions import Prediction, compare
from .patterns import looks_back, of_maps, predicts, query_and_key_sites
from .swap_costs import SettingCosts
from .swap_settings import LayerHeads, Setting, settings_of

if TYPE_CHECKING:
    import xarray as xr

    from ..parameters import SwapParameters

# Rows of a batch in which each row has another head swapped.
_AT_ONCE = 16

Maps = Mapping[int, torch.Tensor]
Replacement = Callable[..., torch.Tensor | None]


class Swap:
    """Runs each prompt as it is, then with each setting, those that draw several times."""

    def __init__(self, parameters: SwapParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.info = context.model
        self.settings = settings_of(parameters, context)
        self.layers = [n for n in self.info.layers if "pattern" not in self.info.lacking.get(n, {})]

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Losses, next-token distributions and hidden states beside those of the model as it is."""
        runner = runner.whole
        chosen = [i for i, n in enumerate(prompts.lengths) if n > 1]
        if not chosen:
            raise GausslensError("no prompt has two tokens: give longer ones")
        sites = _sites(runner, prompts, chosen[0])
        measured = SettingCosts(self.settings, self.info, self.layers, self.parameters)
        for prompt in chosen:
            one = _Prompt(runner, sites, prompts, prompt, predicts(self.info))
            keys = prompts.keys.lengths[prompt]
            measured.begin(len(one.ids), keys, one.compared(one.own))
            for number, setting in enumerate(self.settings):
                if keys < setting.least_tokens:
                    continue
                for draw in range(measured.draws if setting.random else 1):
                    self._measure(measured, number, draw, one)
        return measured.dataset()

    def _measure(self, measured: SettingCosts, number: int, draw: int, prompt: _Prompt) -> None:
        """All heads at once and each alone, as asked for, on one draw of a setting."""
        setting = self.settings[number]
        if "all" in self.parameters.which:
            replace = self._all(setting, prompt, draw)
            measured.all(number, draw, prompt.compared(prompt.outcomes(replace)[0]))
        if "each" in self.parameters.which:
            for layer in self.layers:
                for head, found in self._each(setting, layer, prompt, draw):
                    measured.each(number, draw, layer, head, found)

    def _all(self, setting: Setting, prompt: _Prompt, draw: int) -> Replacement:
        """A replacement of all heads in view, in every layer."""
        if not setting.needs_queries:
            return self._replacing(setting, dict.fromkeys(self.layers), draw)
        known: dict[int, torch.Tensor] = {}
        for layer in self.layers:
            # q and k of a layer follow from what was put into those before it.
            found = prompt.forward(query_and_key_sites(self.info), self._placing(known))
            known[layer] = self._made(setting, layer, found, draw)
        return self._placing(known)

    def _made(self, setting: Setting, layer: int, found: Mapping[Any, torch.Tensor], draw: int) -> torch.Tensor:
        """The maps [head, n, m] of the heads in view from q and k of a pass."""
        q, k = (found[layer, site][0].transpose(0, 1) for site in query_and_key_sites(self.info))
        heads = list(self.info.heads)
        reads = [self.info.kv_of_head[h] for h in heads]
        none = torch.empty(0)
        scale = self.info.facts.scale(layer)
        return setting.make(
            LayerHeads(layer, tuple(heads), draw, none, none, looks_back(self.info), q[heads], k[reads], scale)
        )

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

    def _replacing(self, setting: Setting, where: Mapping[int, Sequence[int] | None], draw: int) -> Replacement:
        """Replaces in these layers all heads in view, or in each row of the batch the one named for it."""
        heads = list(self.info.heads)

        def replace(layer: int, scores: torch.Tensor, pattern: torch.Tensor, _v: Any) -> torch.Tensor | None:
            if layer not in where:
                return None
            rows = where[layer]
            wanted = heads if rows is None else list(rows)
            of = LayerHeads(layer, tuple(wanted), draw, scores[0, wanted], pattern[0, wanted], looks_back(self.info))
            made = setting.make(of).to(pattern)
            new = pattern.clone()
            if rows is None:
                new[:, wanted] = made
            else:
                new[torch.arange(len(wanted)), wanted] = made
            return new

        return replace

    def _each(self, setting: Setting, layer: int, prompt: _Prompt, draw: int) -> Iterator[tuple[int, Floats]]:
        """Each head alone, and what it costs: the rows of a batch are one prompt, each with another head swapped."""
        heads = list(self.info.heads)
        maps = None
        if setting.needs_queries:
            found = prompt.forward(query_and_key_sites(self.info))
            maps = self._made(setting, layer, found, draw)
        for start in range(0, len(heads), _AT_ONCE):
            some = heads[start : start + _AT_ONCE]
            if maps is None:
                replace = self._replacing(setting, {layer: some}, draw)
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


def _sites(runner: Runner, prompts: Tokens, one: int) -> tuple[str, ...]:
    """Logits where the model has a head; hidden states in any case."""
    try:
        runner.forward(prompts.ids[one][None, :2], sites=("logits",), **prompts.beside([one]))
    except ModelError:
        return ("resid_post",)
    return ("logits", "resid_post")


@dataclass(frozen=True)
class _Prompt:
    """One prompt as it is run again and again, and how the model as it is does on it."""

    runner: Runner
    sites: tuple[str, ...]
    prompts: Tokens
    number: int
    predicts: bool

    @property
    def ids(self) -> np.ndarray:
        """Its tokens."""
        return self.prompts.ids[self.number]

    def forward(
        self, sites: Sequence[str], replace: Replacement | None = None, rows: int = 1
    ) -> Mapping[Any, torch.Tensor]:
        """A pass over a batch of this prompt, with what is read beside it."""
        beside = self.prompts.beside([self.number] * rows)
        return self.runner.forward(np.tile(self.ids, (rows, 1)), sites=sites, replace=replace, **beside)

    @cached_property
    def own(self) -> Prediction:
        """What the model as it is gives."""
        return self.outcomes(None)[0]

    def outcomes(self, replace: Replacement | None, rows: int = 1) -> list[Prediction]:
        """What each row of a batch of this prompt gives."""
        found = self.forward(self.sites, replace, rows)
        last = max(key[0] for key in found if isinstance(key, tuple))
        hidden, logits = found[last, "resid_post"], found.get("logits")
        return [Prediction(hidden[row], None if logits is None else logits[row]) for row in range(rows)]

    def compared(self, outcome: Prediction) -> Floats:
        """What is measured of an outcome, beside the model's own."""
        return compare(outcome, self.own, self.ids, self.prompts.text[self.number], self.predicts)


def estimate(parameters: SwapParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: the hidden states of all layers and the logits of the rows that run at once; time: passes and maps."""
    longest, keys = (max(side.lengths, default=0) for side in (tokens, tokens.keys)) if tokens is not None else (0, 0)
    rows = min(_AT_ONCE, len(info.heads)) if "each" in parameters.which else 1
    wide = info.n_layers * info.d_model + 3 * info.vocabulary + 2 * info.n_heads * keys
    count = len(parameters.band) * len(parameters.budget) + len(parameters.masks) * len(parameters.keys)
    count += len(parameters.rank) + len(kernel_names(parameters.kernels, parameters.features))
    each = len(info.layers) * len(info.heads) if "each" in parameters.which else 0
    passes = count * (each + ("all" in parameters.which)) * (sum(tokens.lengths) if tokens is not None else 0)
    # A pass as bilinear.angles has it; a map that is made of a pattern, and what a prompt costs to run by itself.
    seconds = 2 * passes * float(info.n_parameters) / 2e10 + count * of_maps(info, tokens, 1.5e-7).seconds
    return Estimate(memory=4 * rows * longest * wide, seconds=seconds)
