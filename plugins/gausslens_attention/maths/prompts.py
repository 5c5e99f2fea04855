"""What was measured of each layer and prompt, gathered over prompts. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.maths.moments import Arrays, packed, unpacked
from gausslens.maths.resampling import mean_and_error

from .arrays import Floats

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What was measured of each layer and prompt: {(layer, prompt): {name: array}}.
ByPrompt = Mapping[tuple[int, int], Mapping[str, Floats]]


class OfPrompts:
    """What a stream analysis measured of each layer and prompt: merged, and committed on the way."""

    def __init__(self) -> None:
        self.by_prompt: dict[tuple[int, int], dict[str, Floats]] = {}

    def merge(self, other: OfPrompts) -> None:
        """Take in another shard's prompts."""
        self.by_prompt |= other.by_prompt

    def state(self) -> Arrays:
        """All that was measured."""
        return packed(self.by_prompt)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave."""
        self.by_prompt = unpacked(state)


def over_prompts(
    by_prompt: ByPrompt, skip_missing: bool = False
) -> tuple[list[int], dict[str, Floats], dict[str, Floats]]:
    """The layers, and mean and standard error over prompts of what was measured [layer, ...].

    With ``skip_missing`` they are over the prompts that have a number.
    """
    layers = sorted({layer for layer, _ in by_prompt})
    means, errors = {}, {}
    for name in next(iter(by_prompt.values())):
        means[name], errors[name] = mean_and_error(stacked(by_prompt, name), axis=1, skip_missing=skip_missing)
    return layers, means, errors


def stacked(by_prompt: ByPrompt, name: str) -> Floats:
    """One measure as [layer, prompt, ...], prompts in the user's order."""
    layers = sorted({layer for layer, _ in by_prompt})
    prompts = sorted({prompt for _, prompt in by_prompt})
    return np.stack([np.stack([by_prompt[layer, prompt][name] for prompt in prompts]) for layer in layers])


def sd_over_draws(values: Floats) -> Floats:
    """Standard deviation between draws of a number [draw, ...]: 0 where nothing is drawn, NaN where once.

    That of the mean of m draws is this over sqrt(m).
    """
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    # Equal numbers may have a mean that is not quite theirs.
    return np.where(np.ptp(values, axis=0) == 0, 0.0, values.std(axis=0, ddof=1))
