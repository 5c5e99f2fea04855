"""spectrum.effect: what edits do to predictions, attention and text, compared with the same model without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, ModelError, ModelInfo, Runner, Tokens, variable
from gausslens.maths.resampling import average

from .edited_beside_unedited import PATTERN_BYTES, PairedSums, predicts, predicts_next, run_both

if TYPE_CHECKING:
    from ..parameters import EffectParameters

# name: long_name, units. Those that begin with base_ are the same whatever the edits.
PREDICTED = {
    "loss": ("mean loss of a token", "nat"),
    "base_loss": ("mean loss of a token without edits", "nat"),
    "loss_change": ("change of the mean loss of a token", "nat"),
    "kl": ("divergence KL(unedited || edited) of next-token distributions, mean over tokens", "nat"),
    "agreement": ("share of tokens where both models put the same one first", "1"),
}
ATTENDED = {
    "entropy": ("attention entropy, mean over rows", "nat"),
    "base_entropy": ("attention entropy without edits, mean over rows", "nat"),
    "entropy_change": ("change of the attention entropy, mean over rows", "nat"),
    "divergence": ("Jensen-Shannon divergence of attention rows, edited from unedited, mean over rows", "nat"),
}
LAYERS_CHANGE = ("change of the attention entropy, mean over rows and heads", "nat")


class Effect:
    """Runs both models on each prompt by itself, so that nothing depends on what is asked for beside it."""

    def __init__(self, parameters: EffectParameters, context: Context) -> None:
        self.parameters = parameters
        self.info = context.model

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Predictions, attention and text of both models."""
        runner = runner.whole
        headed = predicts(runner, prompts)
        layers = self.info.layers if self.parameters.attention else ()
        if not (headed or layers):
            raise ModelError(f"{runner.info.name} predicts nothing: leave attention on to compare that")
        each = range(len(prompts))
        pairs = [run_both(runner, prompts, one, layers, self.info.heads, headed) for one in each]
        found: dict[str, Any] = {}
        if headed:
            found |= self._predicted(pairs)
        if layers:
            found |= self._attended(pairs)
        if self.parameters.tokens and headed and predicts_next(runner.info):
            found |= self._written(runner, prompts)
        return xr.Dataset(found, {"prompt": list(prompts.names)}, {"level": self.parameters.level})

    def _predicted(self, pairs: Sequence[PairedSums]) -> dict[str, Any]:
        counts = np.array([one.tokens for one in pairs])
        sums = {
            n: np.array([one.predicted[n] for one in pairs if one.predicted is not None])
            for n in pairs[0].predicted or ()
        }
        sums["loss_change"] = sums["loss"] - sums["base_loss"]
        with np.errstate(invalid="ignore"):
            by_prompt = sums["loss_change"] / counts
        return {
            **self._variables((), PREDICTED, sums, counts),
            "prompt_loss_change": variable("prompt", by_prompt, "change of the mean loss of a prompt's tokens", "nat"),
            "counted": variable("prompt", counts, "tokens that count", "token", against=False),
        }

    def _attended(self, pairs: Sequence[PairedSums]) -> dict[str, Any]:
        rows = np.array([one.rows for one in pairs])
        sums = {
            n: np.stack([one.attended[n] for one in pairs if one.attended is not None]) for n in pairs[0].attended or ()
        }
        sums["entropy_change"] = sums["entropy"] - sums["base_entropy"]
        # Heads of a layer see the same prompts: the interval of their mean is not the mean of their intervals.
        of_layers = {"layer_entropy_change": sums["entropy_change"].mean(axis=-1)}
        return {
            **self._variables(("layer", "head"), ATTENDED, sums, rows),
            **self._variables(("layer",), {"layer_entropy_change": LAYERS_CHANGE}, of_layers, rows),
        }

    def _variables(self, dims: tuple[str, ...], names: Any, sums: Any, counts: Any) -> dict[str, Any]:
        """Averages and, where edits move them, their intervals."""
        made: dict[str, Any] = {}
        for name, (long_name, units) in names.items():
            found = average(sums[name], counts, self.parameters.level)
            if name.startswith("base_"):
                made[name] = variable(dims, found.value, long_name, units, against=False)
                continue
            made[name] = variable(dims, found.value, long_name, units)
            for end, values in (("low", found.low), ("high", found.high)):
                made[f"{name}_{end}"] = variable(dims, values, f"{long_name}: {end} end", units, against=False)
        return made

    def _written(self, runner: Runner, prompts: Tokens) -> dict[str, Any]:
        def texts(base: bool) -> np.ndarray:
            return _objects([self._continued(runner, prompts, one, base) for one in range(len(prompts))])

        told = prompts if prompts.sources is None else prompts.sources
        after = [told.rendered[i] or "".join(told.pieces[i]) for i in range(len(told))]
        return {
            "text": variable("prompt", texts(base=False), "what the model wrote"),
            "base_text": variable("prompt", texts(base=True), "what it wrote without edits"),
            "after": variable("prompt", _objects(after), "the prompt"),
        }

    def _continued(self, runner: Runner, prompts: Tokens, prompt: int, base: bool) -> str:
        ids = prompts.begun(prompt)
        (new,) = runner.generate(ids[None], self.parameters.tokens, base=base, **prompts.beside([prompt]))
        special = set(runner.info.facts.get("special_ids", ()))
        return runner.decode([int(i) for i in new if int(i) not in special])


def _objects(texts: Sequence[str]) -> np.ndarray:
    return np.array(texts, dtype=object)


def estimate(parameters: EffectParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: logits of both models for the longest prompt, and patterns kept of the unedited one; their time."""
    longest = max(tokens.lengths if tokens is not None else (), default=0)
    keys = max(tokens.keys.lengths if tokens is not None else (), default=0)
    one_layer = 4 * info.n_heads * longest * keys
    kept = min(max(PATTERN_BYTES, one_layer), len(info.layers) * one_layer) + 8 * one_layer
    sizes = zip(tokens.lengths, tokens.keys.lengths, strict=True) if tokens is not None else ()
    # What is compared of the cells of two patterns, as measured on one core (benchmarks/estimates.py).
    seconds = 1.5e-6 * len(info.layers) * len(info.heads) * sum(n * m for n, m in sizes)
    memory = 8 * longest * info.vocabulary
    return Estimate(memory + kept, seconds=seconds) if parameters.attention else Estimate(memory)
