"""One prompt through the edited model and the unedited one: what both predict and where both look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import ModelError, ModelInfo, Runner, Tokens

from ..maths.distances import attention, predictions

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Patterns of the unedited model are kept for layers of so many bytes at a time; for others the models run again.
PATTERN_BYTES = 256 * 2**20


@dataclass(frozen=True)
class PairedSums:
    """Sums over the tokens and rows of one prompt that count.

    ``predicted`` is {name: sum}, None where the model predicts nothing; ``attended`` {name: [layer, head]}, NaN for
    layers without attention, None where it was not asked for.
    """

    tokens: int
    predicted: dict[str, float] | None
    rows: int
    attended: dict[str, NDArray[np.float64]] | None


class PatternComparison:
    """Patterns of the unedited model are kept, those of the edited one compared with them, layer by layer."""

    def __init__(self, layers: Sequence[int], heads: Sequence[int], counted: torch.Tensor) -> None:
        self.layers, self.heads, self.counted = list(layers), list(heads), counted
        self.base: dict[int, torch.Tensor] = {}
        empty = np.full((len(layers), len(heads)), np.nan)
        self.sums = {name: empty.copy() for name in ("entropy", "base_entropy", "divergence")}

    def keep(self, layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> None:
        """Called by the runner of the unedited model."""
        if layer in self.layers:
            self.base[layer] = pattern[0, self.heads].clone()

    def compare(self, layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> None:
        """Called by the runner of the edited model."""
        if layer in self.base:
            for name, rows in attention(pattern[0, self.heads], self.base.pop(layer)).items():
                self.sums[name][self.layers.index(layer)] = rows[:, self.counted].sum(-1).numpy()


def run_both(
    runner: Runner, prompts: Tokens, prompt: int, layers: Sequence[int], heads: Sequence[int], headed: bool
) -> PairedSums:
    """Both models on one prompt, whose text counts; with no ``layers`` what they predict alone."""
    ids, text, beside = prompts.ids[prompt], prompts.text[prompt], prompts.beside([prompt])
    sites = () if headed else ("resid_post",)
    counted = torch.as_tensor(text)
    pair: list[Any] = []
    parts: list[PatternComparison] = []
    for some in layers_that_fit(layers, runner.info.n_heads, len(ids), prompts.keys.lengths[prompt]):
        patterns = PatternComparison(some, heads, counted)
        ran = [
            runner.forward(ids[None], sites=sites, replace=patterns.keep, base=True, **beside),
            runner.forward(ids[None], sites=sites, replace=patterns.compare, **beside),
        ]
        pair = pair or ran
        parts.append(patterns)
    if headed and not pair:
        pair = [runner.forward(ids[None], base=base, **beside) for base in (True, False)]
    tokens, predicted = 0, None
    if headed:
        base, edited = (one["logits"][0] for one in pair)
        ahead = predicts_next(runner.info)
        rows = predictions(edited, base, torch.as_tensor(ids, device=edited.device), ahead)
        predictable = counted & ~rows["loss"].isnan()
        tokens = int(predictable.sum())
        predicted = {name: float(row[predictable].sum()) for name, row in rows.items()}
    attended = {name: np.concatenate([p.sums[name] for p in parts]) for name in parts[0].sums} if parts else None
    return PairedSums(tokens, predicted, int(counted.sum()), attended)


def predicts_next(info: ModelInfo) -> bool:
    """Whether each token is predicted from those before it: where attention is to a source, too."""
    return info.causal or info.facts.crossed


def layers_that_fit(layers: Sequence[int], heads: int, length: int, keys: int | None = None) -> Iterator[Sequence[int]]:
    """Layers in groups whose patterns, in float32, take PATTERN_BYTES at most; keys are as many as queries, or told."""
    size = max(1, PATTERN_BYTES // (4 * heads * length * (length if keys is None else keys)))
    for start in range(0, len(layers), size):
        yield layers[start : start + size]


def predicts(runner: Runner, prompts: Tokens) -> bool:
    """Whether the model predicts tokens. The unedited one is asked: an edit that fails is another matter."""
    try:
        runner.forward(prompts.ids[0][None], sites=("logits",), base=True, **prompts.beside([0]))
    except ModelError:
        return False
    return True
