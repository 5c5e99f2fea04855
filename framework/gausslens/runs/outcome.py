"""What comes of a run, step by step: what execution hands out, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError, ModelError
from ..guard import Stopped

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.analyses import StepRef
    from ..contract.model import ModelInfo
    from ..store.write_parts import PartWriter
    from .steps import Step


def in_words(ref: StepRef) -> str:
    """Which step it is."""
    return f"{ref.label} on {twin_in_words(ref)}"


def twin_in_words(ref: StepRef) -> str:
    """Of which twin it is."""
    draw = f", draw {ref.draw}" if ref.draw is not None else ""
    return ref.variant + draw + "".join(f", {name} {value}" for name, value in ref.sweep)


@dataclass(frozen=True)
class Failure:
    """A step that failed: the error, and in which layer."""

    step: Step
    error: BaseException
    layer: int | None = None

    def __str__(self) -> str:
        ref, owner = self.step.ref, self.step.use.analysis.owner
        place = in_words(ref)
        place += f", layer {self.layer}" if self.layer is not None else ""
        plain = isinstance(self.error, GausslensError | Stopped)
        what = str(self.error) if plain else f"{type(self.error).__name__}: {self.error}"
        return (
            f"{self.step.use.mark}: {place}: analysis {ref.analysis} of plugin {owner.plugin} "
            f"({owner.distribution} {owner.version}): {what}"
        )


@dataclass(frozen=True)
class Began:
    """A step begins to be computed."""

    step: Step


@dataclass(frozen=True)
class Progress:
    """Units of the work of a task are done: what was done last, of how many estimated seconds, of which kind of task.

    ``found``: another has done it.
    """

    text: str
    units: int = 1
    estimate: float = 0.0
    kind: str = ""
    found: bool = False


@dataclass(frozen=True)
class Noted:
    """Something that whoever runs it should know."""

    text: str


@dataclass(frozen=True)
class Measured:
    """A step that looked at the model is done; ``sharing`` steps used the same pass."""

    step: Step
    result: xr.Dataset | Failure
    sharing: int = 1


@dataclass(frozen=True)
class Finished:
    """A step is done: its result or why there is none, and what made it. ``writer`` holds its large arrays, if any."""

    step: Step
    result: xr.Dataset | Failure
    made_by: Mapping[str, Any] = field(default_factory=dict)
    writer: PartWriter | None = None


@dataclass(frozen=True)
class Settled:
    """A step is in the store, ``computed`` by this run or by another, or it failed."""

    step: Step
    failure: Failure | None = None
    computed: bool = True


@dataclass(frozen=True)
class Said:
    """Something to be read while the run goes on: whom it waits for, what was lost."""

    text: str


@dataclass
class Outcome:
    """What became of the steps: computed now, found in the store, failed; left to other parts of the run."""

    computed: list[Step] = field(default_factory=list)
    found: list[Step] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {"computed": len(self.computed), "found": len(self.found), "failed": len(self.failed)}

    def __str__(self) -> str:
        said = {"computed": "computed", "found": "found in the store", "failed": "failed"}
        told = [f"{n} {said[what]}" for what, n in self.counts().items() if n]
        if self.left:
            told.append(f"{len(self.left)} left to other parts")
        return ", ".join(told) or "nothing to do"


def failures_in_words(failed: Sequence[Failure], steps: int, where: object) -> str:
    """What failed, in a screen."""
    lines = [str(failure) for failure in failed[:10]]
    if len(failed) > 10:
        lines.append(f"... and {len(failed) - 10} more")
    lines.append(f"{len(failed)} of {steps} steps failed; the other results are in {where}")
    return "\n".join(lines)


def labelled(result: Any, info: ModelInfo, skipped: Mapping[int, str] | None = None) -> xr.Dataset:
    """The result of an analysis, checked, with the layers and heads in view as coordinates where it gave none.

    ``skipped`` are layers that do not have what it asked for, with the reason: kept in the attribute skipped_layers.
    """
    import xarray as xr

    if not isinstance(result, xr.Dataset):
        raise ModelError(f"its result is a {type(result).__name__}, not an xarray.Dataset")
    dataset: xr.Dataset = result
    if skipped:
        dataset = dataset.assign_attrs(skipped_layers="; ".join(f"layer {n}: {why}" for n, why in skipped.items()))
    if not dataset.data_vars:
        raise ModelError("its result holds no variable")
    layers = tuple(n for n in info.layers if n not in (skipped or {}))
    for dim, known in (("layer", layers), ("head", info.heads), ("kv_head", info.kv_heads)):
        if known and dim in dataset.dims and dim not in dataset.coords and dataset.sizes[dim] == len(known):
            dataset = dataset.assign_coords({dim: list(known)})
    return dataset
