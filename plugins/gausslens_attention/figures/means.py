"""The means that the sections of this plugin draw: of what was measured, with missing values left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gausslens import figures

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from gausslens import Result


def averaged(values: xr.DataArray, *kept: str) -> np.ndarray:
    """The mean over all dimensions but these, draws and swept values among them."""
    return figures.averaged(values, *kept, skip_missing=True)


def over_draws(*several: Result) -> str:
    """The sentence for figures that show each swept value by itself: their means are over draws alone, if any."""
    return figures.pooled_over(*(replace(result, swept=()) for result in several))
