"""The result of gaussian.joint as named variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens.maths.moments import Floats

from .described import SQUARE, WHOLE, attributes
from .sampling import Information, information_bias

if TYPE_CHECKING:
    from .joint import Place
    from .parameters import JointParameters
    from .windows import Joint

PAIR = ("position", "position_other")
_PAIRS = {
    "mutual_information": ("value", "mutual information, corrected for the sample size (NaN on the diagonal)", "nat"),
    "mutual_information_plugin": ("plugin", "mutual information as fitted, too high by its bias", "nat"),
    "mutual_information_se": ("standard_error", "standard error of the mutual information", "nat"),
    "mutual_information_low": ("low", "lower end of the 95 % interval of the mutual information", "nat"),
    "mutual_information_high": ("high", "upper end of the 95 % interval of the mutual information", "nat"),
    "mutual_information_p": ("p", "share of permutations of the prompts that give as much", "1"),
}


# Dimensions, the number of a fit, and attributes.
_Made = tuple[tuple[str, ...], Callable[[Any], Any], dict[str, Any]]
_OF_POSITIONS: dict[str, _Made] = {
    "entropy": (
        ("position",),
        lambda f: f.entropy,
        attributes("entropy of each position after reduction, corrected for the sample size", "nat", 1),
    ),
    "conditional_entropy": (
        ("step",),
        lambda f: f.conditional_entropy,
        attributes("entropy of a position given the one before", "nat"),
    ),
    "explained": (
        ("step",),
        lambda f: f.explained,
        attributes("share of the variance of a position that the one before explains linearly", "1"),
    ),
    "transition": (
        ("step", "component", "component_before"),
        lambda f: f.transition,
        attributes("matrix of the regression on the position before", "1", 0),
    ),
    "decay": (("lag",), lambda f: f.decay, attributes("mean mutual information at a distance", "nat")),
    "decay_rate": ((), lambda f: f.rate, attributes("how fast it decays (NaN: too little to fit)", "nat/position")),
}


def described(
    fits: Mapping[Place, Joint], axes: Mapping[Place, Floats], parameters: JointParameters, count: int, head: str | None
) -> xr.Dataset:
    """Variables [layer, head, ...]; ``axes`` are the principal directions where vectors were reduced by them."""
    window, start = parameters.window, parameters.start
    positions = np.arange(start, start + window) if parameters.every is None else np.arange(window)
    dims = next(iter(fits.values())).covariance.shape[1]
    lag, components = np.arange(1, window), np.arange(dims)
    values = dict(_OF_POSITIONS)
    for name, (field, text, units) in _PAIRS.items():
        if field != "p" or parameters.permutations:
            against = 1 if name == "mutual_information" else 0
            values[name] = (PAIR, _matrix(field), attributes(text, units, against))
    if window * dims <= WHOLE:
        blocks = ("position", "component", "position_other", "component_other")
        values["covariance"] = (blocks, lambda f: f.covariance, attributes("joint covariance", SQUARE, 0))
    dataset = _stacked(fits, values, head)
    bias = information_bias(count, dims, dims)
    text = "what was subtracted from each mutual information"
    extra: dict[str, Any] = {
        "count": ((), np.int64(count), attributes("windows", "windows", 0)),
        "mutual_information_bias": ((), bias, attributes(text, "nat", 0)),
    }
    if axes:
        text = "principal directions that vectors were reduced to; their signs mean nothing"
        kept = _stacked(axes, {"axes": (("component", "feature"), lambda a: a, attributes(text, "1", 0))}, head)
        dataset = dataset.merge(kept)
    coords = {"position": positions, "position_other": positions, "step": positions[1:], "lag": lag}
    coords |= dict.fromkeys(("component", "component_before"), components)
    coords |= {"component_other": components} if "covariance" in dataset else {}
    how = {"pca": "leading principal directions", "random": "a fixed random projection", "none": "nothing"}
    return (
        dataset.assign(extra)
        .assign_coords(coords)
        .assign_attrs(site=parameters.site, reduced_by=how[parameters.reduce], reduced_to=dims)
    )


def _matrix(field: str) -> Callable[[Joint], Floats]:
    """[position, position] of one number of each pair; NaN on the diagonal."""

    def of(found: Joint) -> Floats:
        size = len(found.information)
        values = np.full((size, size), np.nan)
        for i in range(size):
            for j in range(i + 1, size):
                one = found.information[i][j]
                assert isinstance(one, Information)
                values[i, j] = values[j, i] = getattr(one, field)
        return values

    return of


def _stacked(
    parts: Mapping[Place, Any],
    values: Mapping[str, _Made],
    head: str | None,
) -> xr.Dataset:
    layers = list(dict.fromkeys(layer for layer, _ in parts))
    heads = list(dict.fromkeys(one for _, one in parts))
    variables = {}
    for name, (dims, of, attrs) in values.items():
        array = np.stack([np.stack([np.asarray(of(parts[layer, one])) for one in heads]) for layer in layers])
        lead: tuple[str, ...] = ("layer", head or "head")
        if head is None:
            array, lead = array[:, 0], lead[:1]
        if layers == [None]:
            array, lead = array[0], lead[1:]
        variables[name] = ((*lead, *dims), array, attrs)
    dataset = xr.Dataset(variables)
    coords = ({} if layers == [None] else {"layer": layers}) | ({head: heads} if head else {})
    return dataset.assign_coords(coords)
