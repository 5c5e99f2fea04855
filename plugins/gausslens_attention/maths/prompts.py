"""Means over prompts and how sure they are. Pure numpy.

Prompts are the independent draws, so errors are over them: tokens of one prompt go together.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .arrays import Floats

# What was measured of each layer and prompt: {(layer, prompt): {name: array}}.
ByPrompt = Mapping[tuple[int, int], Mapping[str, Floats]]


def mean_and_error(values: Floats, axis: int = 0, skip_missing: bool = False) -> tuple[Floats, Floats]:
    """Mean over the prompts on ``axis`` and its standard error s / sqrt m, s^2 = sum (x - mean)^2 / (m - 1).

    One prompt has no error: NaN. A missing value (NaN) makes its mean missing; with ``skip_missing`` it is left out, m
    counts the others of its cell, and the mean is NaN where there is none.
    """
    if not skip_missing:
        m = values.shape[axis]
        mean: Floats = values.mean(axis=axis)
        return mean, values.std(axis=axis, ddof=1) / np.sqrt(m) if m > 1 else np.full(mean.shape, np.nan)
    count = (~np.isnan(values)).sum(axis=axis)
    mean = np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)
    apart = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    error = np.sqrt(apart / (np.maximum(count, 2) - 1) / np.maximum(count, 1))
    return mean, np.where(count > 1, error, np.nan)


def ratio_and_error(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """r = sum x / sum w over prompts, x [prompt, ...] and w [prompt], and its standard error by linearisation.

        s^2 = m / (m - 1) sum (x - r w)^2 / (sum w)^2                                         (Cochran 1977, ch. 6)

    For sums over the tokens of prompts of unequal length, w their numbers, that is the mean of a token. With w = 1 it
    is ``mean_and_error``. One prompt has no error: NaN.
    """
    m, total = len(values), weights.sum()
    each = weights.reshape(m, *(1,) * (values.ndim - 1))
    ratio: Floats = values.sum(axis=0) / total
    if m < 2:
        return ratio, np.full(ratio.shape, np.nan)
    residual = values - each * values.sum(axis=0) / total
    return ratio, np.sqrt((residual**2).sum(axis=0) * m / (m - 1)) / total


def over_prompts(by_prompt: ByPrompt) -> tuple[list[int], dict[str, Floats], dict[str, Floats]]:
    """The layers, and mean and standard error over prompts of what was measured [layer, ...]."""
    layers = sorted({layer for layer, _ in by_prompt})
    means, errors = {}, {}
    for name in next(iter(by_prompt.values())):
        means[name], errors[name] = mean_and_error(stacked(by_prompt, name), axis=1)
    return layers, means, errors


def stacked(by_prompt: ByPrompt, name: str) -> Floats:
    """One measure as [layer, prompt, ...], prompts in the user's order."""
    layers = sorted({layer for layer, _ in by_prompt})
    prompts = sorted({prompt for _, prompt in by_prompt})
    return np.stack([np.stack([by_prompt[layer, prompt][name] for prompt in prompts]) for layer in layers])
