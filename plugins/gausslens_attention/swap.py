"""attention.swap: the model runs with heads' attention replaced by an approximation. What it loses is the judge.

Bands, top-k masks and truncated decompositions are made of the head's own pattern: they are oracles, which see the
whole map before they choose; no map of that form and storage is nearer, though another may cost the model less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import Context, Estimate, GausslensError, ModelError, ModelInfo, Runner, Tokens

from .curves import projected_sites, scale_of
from .judged import Judged, Outcome, compared
from .swapped import Setting, Shown, settings_of

if TYPE_CHECKING:
    import xarray as xr

    from .parameters import SwapParameters

# Rows of a batch in which each row has another head swapped.
_AT_ONCE = 16

Maps = Mapping[int, torch.Tensor]


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
        judged = Judged(self.settings, self.info, self.layers, self.parameters)
        for prompt in chosen:
            ids, text = prompts.ids[prompt], prompts.text[prompt]
            whole = runner.forward(ids[None], sites=sites)
            outcome = _outcome(whole, 0)
            judged.begin(len(ids), compared(outcome, outcome, ids, text, self.info.causal))
            for number, setting in enumerate(self.settings):
                if "all" in self.parameters.which:
                    found = runner.forward(ids[None], sites=sites, replace=self._all(runner, setting, ids))
                    judged.all(number, compared(_outcome(found, 0), outcome, ids, text, self.info.causal))
                if "each" in self.parameters.which:
                    for layer in self.layers:
                        self._each(runner, setting, number, layer, ids, text, sites, outcome, judged)
        return judged.dataset()

    def _all(self, runner: Runner, setting: Setting, ids: np.ndarray) -> Callable[..., torch.Tensor | None]:
        """A replacement of all heads in view, in every layer."""
        if not setting.projected:
            return self._replacing(setting, dict.fromkeys(self.layers))
        known: dict[int, torch.Tensor] = {}
        for layer in self.layers:
            # q and k of a layer follow from what was put into those before it.
            found = runner.forward(ids[None], sites=projected_sites(self.info), replace=self._placing(known))
            known[layer] = self._made(setting, layer, found)
        return self._placing(known)

    def _made(self, setting: Setting, layer: int, found: Mapping[Any, torch.Tensor]) -> torch.Tensor:
        """The maps [head, n, n] of the heads in view from q and k of a pass."""
        q, k = (found[layer, site][0].transpose(0, 1) for site in projected_sites(self.info))
        heads = list(self.info.heads)
        reads = [self.info.kv_of_head[h] for h in heads]
        none = torch.empty(0)
        shown = Shown(none, none, self.info.causal, q[heads], k[reads], scale_of(self.info, layer))
        return setting.make(shown)

    def _placing(self, known: Maps) -> Callable[..., torch.Tensor | None]:
        """Puts maps that are known into the heads in view."""
        heads = list(self.info.heads)

        def replace(layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> torch.Tensor | None:
            if layer not in known:
                return None
            new = pattern.clone()
            new[:, heads] = known[layer].to(pattern)
            return new

        return replace

    def _replacing(
        self, setting: Setting, where: Mapping[int, Sequence[int] | None]
    ) -> Callable[..., torch.Tensor | None]:
        """Replaces in these layers all heads in view, or in each row of the batch the one named for it."""
        heads = list(self.info.heads)

        def replace(layer: int, scores: torch.Tensor, pattern: torch.Tensor, _v: Any) -> torch.Tensor | None:
            if layer not in where:
                return None
            rows = where[layer]
            wanted = heads if rows is None else list(rows)
            made = setting.make(Shown(scores[0, wanted], pattern[0, wanted], self.info.causal)).to(pattern)
            new = pattern.clone()
            if rows is None:
                new[:, wanted] = made
            else:
                new[torch.arange(len(wanted)), wanted] = made
            return new

        return replace

    def _each(
        self,
        runner: Runner,
        setting: Setting,
        number: int,
        layer: int,
        ids: np.ndarray,
        text: np.ndarray,
        sites: tuple[str, ...],
        outcome: Outcome,
        judged: Judged,
    ) -> None:
        """One head at a time: the rows of a batch are the same prompt, each with another head swapped."""
        heads = list(self.info.heads)
        maps = None
        if setting.projected:
            maps = self._made(setting, layer, runner.forward(ids[None], sites=projected_sites(self.info)))
        for start in range(0, len(heads), _AT_ONCE):
            some = heads[start : start + _AT_ONCE]
            if maps is None:
                replace = self._replacing(setting, {layer: some})
            else:
                replace = _one_a_row(layer, some, maps[start : start + _AT_ONCE])
            found = runner.forward(np.tile(ids, (len(some), 1)), sites=sites, replace=replace)
            for row, head in enumerate(some):
                judged.each(number, layer, head, compared(_outcome(found, row), outcome, ids, text, self.info.causal))


def _one_a_row(layer: int, heads: Sequence[int], maps: torch.Tensor) -> Callable[..., torch.Tensor | None]:
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


def _outcome(found: Mapping[Any, torch.Tensor], row: int) -> Outcome:
    last = max(key[0] for key in found if isinstance(key, tuple))
    logits = found.get("logits")
    return Outcome(found[last, "resid_post"][row], None if logits is None else logits[row])


def estimate(parameters: SwapParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: the hidden states of all layers and the logits of the rows that run at once."""
    longest = max(tokens.lengths, default=0) if tokens is not None else 0
    rows = min(_AT_ONCE, len(info.heads)) if "each" in parameters.which else 1
    wide = info.n_layers * info.d_model + 3 * info.vocabulary + 2 * info.n_heads * longest
    return Estimate(memory=4 * rows * longest * wide)
