"""What comes of a step: a labelled dataset, or a failure that says where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError, ModelError

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.model import ModelInfo
    from ..store.write import PartWriter
    from .plan import Step


@dataclass(frozen=True)
class Failure:
    """A step that failed: the error, and in which layer."""

    step: Step
    error: BaseException
    layer: int | None = None

    def __str__(self) -> str:
        ref, owner = self.step.ref, self.step.use.analysis.owner
        place = f"{ref.label} on {ref.variant}"
        place += f", draw {ref.draw}" if ref.draw is not None else ""
        place += "".join(f", {name} {value}" for name, value in ref.sweep)
        place += f", layer {self.layer}" if self.layer is not None else ""
        plain = isinstance(self.error, GausslensError)
        what = str(self.error) if plain else f"{type(self.error).__name__}: {self.error}"
        return (
            f"{self.step.use.mark}: {place}: analysis {ref.analysis} of plugin {owner.plugin} "
            f"({owner.distribution} {owner.version}): {what}"
        )


# Called with a finished dataset (or the error and the layer), and the writer of its large arrays where it has one.
Finished = Callable[["Step", "xr.Dataset | Failure", "PartWriter | None", int], None]


def labelled(result: Any, info: ModelInfo | None, skipped: Mapping[int, str] | None = None) -> xr.Dataset:
    """The result of an analysis, checked, with the layers and heads in view as coordinates where it gave none.

    ``skipped`` are layers that do not have what it asked for, with the reason: told in the attribute skipped_layers.
    """
    import xarray as xr

    if not isinstance(result, xr.Dataset):
        raise ModelError(f"its result is a {type(result).__name__}, not an xarray.Dataset")
    dataset: xr.Dataset = result
    if skipped:
        dataset = dataset.assign_attrs(skipped_layers="; ".join(f"layer {n}: {why}" for n, why in skipped.items()))
    if not dataset.data_vars:
        raise ModelError("its result holds no variable")
    if info is None:
        return dataset
    layers = tuple(n for n in info.layers if n not in (skipped or {}))
    for dim, known in (("layer", layers), ("head", info.heads), ("kv_head", info.kv_heads)):
        if dim in dataset.dims and dim not in dataset.coords and dataset.sizes[dim] == len(known):
            dataset = dataset.assign_coords({dim: list(known)})
    return dataset
