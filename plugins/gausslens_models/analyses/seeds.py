"""model.seeds: what the seeds of the data and of the initialisation give, from trainings that differ in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from gausslens import Context, InputError, StepRef, did_you_mean, variable
from gausslens.maths.trainings import Component, crossed_components, variance_components

if TYPE_CHECKING:
    from ..parameters import SeedsParameters

# Heads have no counterpart in another training, and are taken in the order of their values.
HEADS = ("head", "kv_head")
NOT_ALONG = frozenset({"query", "key", "position", "token", "prompt", "feature", "d_model", "group"})
LARGEST = 100_000


class Seeds:
    """Reads one result of several trainings and says how its numbers vary over their seeds."""

    def __init__(self, parameters: SeedsParameters, context: Context) -> None:  # noqa: ARG002
        self.parameters = parameters

    def inputs(self, steps: Sequence[StepRef]) -> list[StepRef]:
        """The result of every training."""
        p = self.parameters
        if p.of not in {s.label for s in steps}:
            raise InputError(f"model.seeds: there is no {p.of!r}{did_you_mean(p.of, sorted({s.label for s in steps}))}")
        groups = (p.data, p.initialisation, p.both)
        names = [name for name in ((p.crossed,) if p.crossed is not None else groups) if name is not None]
        found = [s for s in steps if s.label == p.of and s.variant in names]
        for name in names:
            mine = [s for s in found if s.variant == name]
            if not mine:
                raise InputError(f"model.seeds: {p.of!r} is not computed on the variant {name!r}")
            if p.crossed is None and (mine[0].sweep or mine[0].draw is None):
                raise InputError(f"model.seeds: {name!r} has no draws that are models, as `draws: {{seed: [1, 2, 3]}}`")
            if p.crossed is not None:
                _check_crossed(name, mine)
        return found

    def compute(self, inputs: Mapping[StepRef, xr.Dataset]) -> xr.Dataset:
        """Components of variance [statistic, source] with their errors."""
        p = self.parameters
        found: dict[str, dict[str, Component]] = {}
        first = next(iter(inputs.values()))
        for name, one in first.data_vars.items():
            if not _varies(str(name), one, inputs):
                continue
            values = {ref: _in_order(data[name]) for ref, data in inputs.items()}
            if p.crossed is not None:
                found[str(name)] = crossed_components(_grid(values))
            else:
                groups = (p.data, p.initialisation, p.both)
                each = (np.stack([v for ref, v in values.items() if ref.variant == group]) for group in groups)
                data, init, both = each
                found[str(name)] = variance_components(data, init, both)
        if not found:
            raise InputError(f"model.seeds: {p.of!r} has no number that varies over trainings")
        return _dataset(found, p.of)


def _check_crossed(name: str, steps: Sequence[StepRef]) -> None:
    swept = [n for n, _ in steps[0].sweep]
    values = [{dict(s.sweep)[n] for s in steps} for n in swept]
    if len(swept) != 2 or len(steps) != len(values[0]) * len(values[1]):
        raise InputError(
            f"model.seeds: {name!r} is not swept over two seeds, those of the data first, as "
            '`{model: {path: "data{data}-init{init}"}, sweep: {data: [1, 2, 3], init: [1, 2, 3]}}`'
        )


def _varies(name: str, one: xr.DataArray, inputs: Mapping[StepRef, xr.Dataset]) -> bool:
    """Whether a variable is a number with the same cells in every training that varies over them."""
    if one.dtype.kind not in "fiu" or one.size > LARGEST or NOT_ALONG & {str(d) for d in one.dims}:
        return False
    if "of" in one.attrs or not one.attrs.get("against", 1):
        return False
    each = [data[name] for data in inputs.values() if name in data and data[name].shape == one.shape]
    if len(each) < len(inputs):
        return False
    values = np.stack([np.asarray(other.values, dtype=float) for other in each])
    whole = np.isfinite(values).all(axis=0)
    return bool(whole.any() and (np.ptp(values[:, whole], axis=0) > 0).any())


def _in_order(one: xr.DataArray) -> np.ndarray:
    """Heads of each place in the order of their values: those of other trainings have no counterpart."""
    heads = [d for d in one.dims if d in HEADS]
    others = [d for d in one.dims if d not in HEADS]
    values = np.asarray(one.transpose(*others, *heads).values, dtype=float)
    flat = values.reshape(*values.shape[: len(others)], -1)
    return np.sort(flat, axis=-1) if heads else flat


def _grid(values: Mapping[StepRef, np.ndarray]) -> np.ndarray:
    """[data, initialisation, cells...] of a variant that is swept over both."""
    names = [name for name, _ in next(iter(values)).sweep]
    (first, data), (second, init) = ((n, sorted({dict(ref.sweep)[n] for ref in values})) for n in names)
    at = {(dict(ref.sweep)[first], dict(ref.sweep)[second]): v for ref, v in values.items()}
    return np.stack([np.stack([at[d, i] for i in init]) for d in data])


def _dataset(found: Mapping[str, Mapping[str, Component]], of: str) -> xr.Dataset:
    sources = list(next(iter(found.values())))
    columns = {
        "variance": ("value", "variance between trainings, mean over cells", "squared units"),
        "error": ("error", "its error, by leaving out trainings", "squared units"),
        "low": ("low", "lower end of its 95 % interval", "squared units"),
        "high": ("high", "upper end of its 95 % interval", "squared units"),
    }
    made = {}
    for name, (attribute, long_name, units) in columns.items():
        values = np.array([[getattr(each[source], attribute) for source in sources] for each in found.values()])
        made[name] = variable(("statistic", "source"), values, long_name, units)
    made["negative"] = variable(
        ("statistic", "source"),
        np.array([[each[source].negative for source in sources] for each in found.values()]).astype(np.int8),
        "whether it is below 0, where no variance can be: not to be told from none",
        "1",
    )
    return xr.Dataset(made, coords={"statistic": list(found), "source": sources}, attrs={"of": of})
