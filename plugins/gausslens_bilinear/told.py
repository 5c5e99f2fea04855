"""How bilinear.logits tells what it found: predicted beside measured, as variables of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens.maths.resampling import MOMENTS

from .rows import MEASURES

Floats: TypeAlias = NDArray[np.float64]

FAMILIES = {
    "content": "content form <W_q x, W_k y>/sqrt(d_head) of tokens at this lag, without position",
    "score": "true score of tokens at this lag",
    "independent": "score of tokens of different prompts, as if at this lag",
}
_UNITS = {"mean": "logits", "variance": "logits squared", "skewness": "1", "kurtosis": "1"}
_OFF = {
    "mean": "(predicted - measured) / measured standard deviation",
    "variance": "predicted / measured - 1",
    "skewness": "predicted - measured",
    "kurtosis": "predicted - measured",
}
_NAMES = {"kurtosis": "excess kurtosis"}
_ROWS = {
    "entropy": ("entropy of a row over the keys that count", "nats"),
    "concentration": ("sum of the squared probabilities of such a row", "1"),
    "variance": ("variance of the logits within a row", "logits squared"),
    "outside": ("share of a row that goes to keys that do not count", "1"),
}


def told(
    predicted: Mapping[str, Floats], measured: Mapping[str, tuple[Floats, Floats]], coords: Mapping[str, Sequence[int]]
) -> xr.Dataset:
    """Variables [head, lag] of each family and moment: predicted, measured, its standard error, and how far off."""
    variables: dict[str, Any] = {}
    dims = ("head", "lag")
    for family, text in FAMILIES.items():
        (found, errors), expected = measured[family], predicted[family]
        for i, moment in enumerate(MOMENTS):
            said, units = f"{_NAMES.get(moment, moment)} of the {text}", _UNITS[moment]
            one, wanted = found[..., i], expected[..., i]
            off = _off(moment, wanted, one, found[..., 1])
            name = f"{family}_{moment}"
            left = {"against": 0}
            variables[f"{name}_measured"] = (dims, one, {"long_name": f"{said}: measured", "units": units})
            for end, values, how, unit in (
                ("error", errors[..., i], "standard error of the measurement", units),
                ("predicted", wanted, "predicted from the Gaussian of (query, key)", units),
                ("off", off, _OFF[moment], "1"),
            ):
                variables[f"{name}_{end}"] = (dims, values, {"long_name": f"{said}: {how}", "units": unit, **left})
        variables[f"{family}_non_normality"] = (
            dims,
            found[..., 2] ** 2 / 12 + found[..., 3] ** 2 / 48,
            {"long_name": f"negentropy of the {text}, to second order: skewness^2/12 + kurtosis^2/48", "units": "nats"},
        )
    return xr.Dataset(variables, coords=dict(coords))


def rows_dataset(
    predicted: Floats, measured: Floats, errors: Floats, lows: Sequence[int], heads: Sequence[int]
) -> xr.Dataset:
    """Variables [head, row_keys] of the rows, by the number of keys: from this one to less than twice as many."""
    variables: dict[str, Any] = {}
    dims = ("head", "row_keys")
    for i, measure in enumerate(MEASURES):
        text, units = _ROWS[measure]
        arrays = [("measured", measured[..., i], {}), ("error", errors[..., i], {"against": 0})]
        if i < predicted.shape[-1]:
            arrays.append(("predicted", predicted[..., i], {"against": 0}))
        for end, values, more in arrays:
            how = {"measured": "measured", "error": "standard error", "predicted": "predicted from the logit variance"}
            attrs = {"long_name": f"{text}: {how[end]}", "units": units, **more}
            variables[f"row_{measure}_{end}"] = (dims, values, attrs)
    return xr.Dataset(variables, coords={"head": list(heads), "row_keys": list(lows)})


def _off(moment: str, predicted: Floats, measured: Floats, variance: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        if moment == "mean":
            return np.asarray((predicted - measured) / np.sqrt(variance))
        return np.asarray(predicted / measured - 1 if moment == "variance" else predicted - measured)
