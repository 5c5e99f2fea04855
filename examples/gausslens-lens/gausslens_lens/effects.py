"""From changes of a metric, pair by pair, to the variables of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from gausslens import ModelInfo, error_of, mean_over_prompts, site, variable

Variables = dict[str, Any]


def ratio(changes: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sum of changes [pair, ...] over sum of gaps [pair], and its standard error over pairs by linearisation.

    r = sum c / sum g,  se = sqrt(m / (m - 1) sum (c - r g)^2) / |sum g|; pairs without a cell (NaN) are left out of it.
    """
    there = ~np.isnan(changes)
    g = np.where(there, gaps.reshape(-1, *(1,) * (changes.ndim - 1)), 0.0)
    c, m, total = np.where(there, changes, 0.0), there.sum(axis=0), g.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(m > 0, c.sum(axis=0) / total, np.nan)
        spread = ((c - np.where(there, found, 0.0) * g) ** 2).sum(axis=0) * m / (m - 1)
        error = np.where(m > 1, np.sqrt(spread) / np.abs(total), np.nan)
    return np.where(np.isfinite(found), found, np.nan), np.where(np.isfinite(error), error, np.nan)


def dims_of(name: str, each_position: bool) -> tuple[str, ...]:
    """The dimensions of the cells of a site: its heads, if it has any, and positions."""
    heads = [dim for dim in site(name).dims if dim in ("head", "kv_head")]
    return ("layer", *heads, "position") if each_position or not heads else ("layer", *heads)


def shape_of(info: ModelInfo, dims: Sequence[str], positions: int) -> tuple[int, ...]:
    """How many cells there are along each."""
    sizes = {"layer": len(info.layers), "head": len(info.heads), "kv_head": len(info.kv_heads), "position": positions}
    return tuple(sizes[dim] for dim in dims)


def variables(name: str, dims: Sequence[str], changes: np.ndarray, gaps: np.ndarray, how: str) -> Variables:
    """<name>_change, the mean over pairs, and <name>_effect, the same as a share of the gap; with their errors."""
    effect, error = ratio(changes, gaps)
    change, share = f"what {name} changes, {how}", f"effect of {name}, {how}: 0 as before, 1 as the other run"
    return {
        **mean_over_prompts(f"{name}_change", dims, changes, change, against=True),
        # Of a model that does not tell the two prompts apart it is 0 / 0: twins are compared by the change.
        f"{name}_effect": variable(dims, effect, share, against=False),
        f"{name}_effect_se": error_of(f"{name}_effect", dims, error, share),
    }


def ends(clean: np.ndarray, corrupted: np.ndarray) -> Variables:
    """The metric of both prompts without any change: what 1 and 0 are."""
    return {
        **mean_over_prompts("clean", (), clean, "metric of the clean prompts"),
        **mean_over_prompts("corrupted", (), corrupted, "metric of the corrupted prompts"),
        **mean_over_prompts("gap", (), clean - corrupted, "metric of the clean prompts less the corrupted ones"),
    }


def coordinates(info: ModelInfo, positions: int) -> Mapping[str, Any]:
    """Layers and heads in view, and positions counted from the last token, which is -1."""
    return {
        "layer": list(info.layers),
        "head": list(info.heads),
        "kv_head": list(info.kv_heads),
        "position": np.arange(-positions, 0),
    }


def correlations(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Spearman's rank correlation and Pearson's, over cells that both have; NaN for fewer than 3, or of a constant."""
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan"), float("nan")
    ranks = np.corrcoef(rankdata(a), rankdata(b))[0, 1]
    return float(ranks), float(np.corrcoef(a, b)[0, 1])
