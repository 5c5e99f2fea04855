"""The edit of this plugin: a LoRA adapter laid over a model, tensor by tensor as the model's files hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gausslens import Generators, LayerWeights, ModelError, OpenModel

from .families.layout import FAMILIES, Layout
from .families.two_stacks import TWO_STACKS
from .loading.adapter import adapter_at

if TYPE_CHECKING:
    import torch

    from .families.slots import Family, Slot
    from .loading.adapter import Adapter, Change
    from .parameters import LoraParameters


def lora(weights: LayerWeights, parameters: LoraParameters, generators: Generators) -> dict[str, torch.Tensor]:  # noqa: ARG001
    """W + scale B A for every tensor of this layer that the adapter changes, cut into heads as the model's are.

    Of a model of two stacks it reaches the one that is studied, as every edit does; as a model (`model: DIR`) both.
    """
    adapter = adapter_at(parameters.path)
    layout, changes = _placed(adapter, weights.model)
    places = layout.places[weights.layer]
    made: dict[str, torch.Tensor] = {}
    for theirs in {place.theirs: None for place in places.values() if place.theirs in changes}:
        parts = {ours: place for ours, place in places.items() if place.theirs == theirs}
        first = next(iter(parts))
        stored = weights[first].new_zeros(layout.shapes[theirs])
        for ours, place in parts.items():
            layout.write(place, stored, weights[ours] - place.slot.plus)
        changed = adapter.changed(changes[theirs], stored, parts[first])
        changeable = {ours: place for ours, place in parts.items() if weights.may_change(ours)}
        made |= {ours: layout.ours(place, changed, changed.dtype) for ours, place in changeable.items()}
    return made


def check_lora(model: OpenModel, parameters: LoraParameters) -> None:
    """Hold the names and shapes of the adapter's tensors against those of the model."""
    _placed(adapter_at(parameters.path), model)


def _placed(adapter: Adapter, model: OpenModel) -> tuple[Layout, dict[str, Change]]:
    """Where the model has its tensors, and what the adapter changes of them; ModelError where it does not fit."""
    layout = getattr(model, "layout", None)
    if not isinstance(layout, Layout):
        raise ModelError(
            f"the loader of {model.info.name} does not say as what its tensors are stored: no adapter fits"
        )
    changes = adapter.placed(layout, model.info.name)
    if not any(place.theirs in changes for places in layout.places.values() for place in places.values()):
        raise ModelError(
            f"{adapter.directory}: it changes nothing of the {layout.family.stack} of {model.info.name}, which is the "
            "stack that is studied"
        )
    return layout, changes


def touched_by_lora(parameters: LoraParameters) -> tuple[str, ...]:
    """The tensors that a family of models may have under the names that the adapter changes."""
    ends = {".".join(name.rsplit(".", 2)[-2:]) for name in adapter_at(parameters.path).changes}
    found = {
        ours
        for family in (*FAMILIES, *TWO_STACKS)
        for ours, slot in _slots(family)
        if any(".".join(name.rsplit(".", 2)[-2:]) in ends for name in slot.tensor.split("|"))
    }
    return tuple(sorted(found))


def _slots(family: Family) -> Iterator[tuple[str, Slot]]:
    """All slots of a family, of layers of every kind and outside them."""
    for slots in (family.tensors, family.stored, family.outside, *(other.tensors for other in family.others.values())):
        yield from slots.items()
    if family.mixture is not None:
        yield from family.mixture.tensors.items()
    if "W_E" in family.outside:  # a head of its own, or the embedding turned
        yield "W_U", family.outside["W_E"]
