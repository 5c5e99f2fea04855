"""One prompt through the edited model and the unedited one: what both predict and where both look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import ModelError, Runner

from .distance import attention, predictions

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Patterns of the unedited model are held for so many bytes of layers at a time; for others the models run again.
HELD = 256 * 2**20


@dataclass(frozen=True)
class Beside:
    """Sums over the tokens and rows of one prompt that count.

    ``predicted`` is {name: sum}, None where the model predicts nothing; ``attended`` {name: [layer, head]}, NaN for
    layers without attention, None where it was not asked for.
    """

    tokens: int
    predicted: dict[str, float] | None
    rows: int
    attended: dict[str, NDArray[np.float64]] | None


class Patterns:
    """Patterns of the unedited model are held, those of the edited one compared, layer by layer."""

    def __init__(self, layers: Sequence[int], heads: Sequence[int], counted: torch.Tensor) -> None:
        self.layers, self.heads, self.counted = list(layers), list(heads), counted
        self.held: dict[int, torch.Tensor] = {}
        empty = np.full((len(layers), len(heads)), np.nan)
        self.sums = {name: empty.copy() for name in ("entropy", "base_entropy", "divergence")}

    def hold(self, layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> None:
        """Called by the runner of the unedited model."""
        if layer in self.layers:
            self.held[layer] = pattern[0, self.heads].clone()

    def compare(self, layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> None:
        """Called by the runner of the edited model."""
        if layer in self.held:
            for name, rows in attention(pattern[0, self.heads], self.held.pop(layer)).items():
                self.sums[name][self.layers.index(layer)] = rows[:, self.counted].sum(-1).numpy()


def beside(
    runner: Runner, ids: np.ndarray, text: np.ndarray, layers: Sequence[int], heads: Sequence[int], headed: bool
) -> Beside:
    """Both models on one prompt; with no ``layers`` what they predict alone."""
    sites = () if headed else ("resid_post",)
    counted = torch.as_tensor(text)
    pair: list[Any] = []
    parts: list[Patterns] = []
    for some in held_together(layers, runner.info.n_heads, len(ids)):
        patterns = Patterns(some, heads, counted)
        ran = [
            runner.forward(ids[None], sites=sites, replace=patterns.hold, base=True),
            runner.forward(ids[None], sites=sites, replace=patterns.compare),
        ]
        pair = pair or ran
        parts.append(patterns)
    if headed and not pair:
        pair = [runner.forward(ids[None], base=base) for base in (True, False)]
    tokens, predicted = 0, None
    if headed:
        base, edited = (one["logits"][0] for one in pair)
        rows = predictions(edited, base, torch.as_tensor(ids, device=edited.device), runner.info.causal)
        told = counted & ~rows["loss"].isnan()
        tokens, predicted = int(told.sum()), {name: float(row[told].sum()) for name, row in rows.items()}
    attended = {name: np.concatenate([p.sums[name] for p in parts]) for name in parts[0].sums} if parts else None
    return Beside(tokens, predicted, int(counted.sum()), attended)


def held_together(layers: Sequence[int], heads: int, length: int) -> Iterator[Sequence[int]]:
    """Layers in groups whose patterns, in float32, fit into what may be held."""
    size = max(1, HELD // (4 * heads * length**2))
    for start in range(0, len(layers), size):
        yield layers[start : start + size]


def has_logits(runner: Runner, ids: np.ndarray) -> bool:
    """Whether the model predicts tokens. The unedited one is asked: an edit that fails is another matter."""
    try:
        runner.forward(ids[None], sites=("logits",), base=True)
    except ModelError:
        return False
    return True
