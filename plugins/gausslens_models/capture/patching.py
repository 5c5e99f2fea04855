"""A twin's edited tensors in the live module, for as long as a run lasts.

Parameters are exchanged, never written: the edited ones are the only extra memory, undoing puts the old objects back.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gausslens import ModelError

from ..loading.pretrained import Owners

if TYPE_CHECKING:
    from gausslens import Twin

    from ..families.layout import Layout, Place

Exchange = tuple[torch.nn.Module, str, torch.Tensor]


class Patches:
    """The exchanges of the twin that ran last, made layer by layer when first needed."""

    def __init__(self) -> None:
        self._twin: weakref.ref[Twin] | None = None
        self._made: dict[int | None, list[Exchange]] = {}
        self._owners = Owners({}, None)

    @contextlib.contextmanager
    def applied(self, twin: Twin, layers: list[int]) -> Iterator[None]:
        """The module with the twin's tensors in these layers and outside the layers; afterwards as before."""
        by_layer = getattr(twin.base, "by_layer", None)
        if by_layer is not None:
            with by_layer.of(twin):
                yield
            return
        undo: list[Exchange] = []
        # All before any is put in: an edit of one layer may read another, as it is without edits.
        made = [exchange for layer in (None, *layers) for exchange in self._exchanges(twin, layer)]
        try:
            for module, leaf, parameter in made:
                undo.append((module, leaf, _held(module, leaf)[leaf]))
                _held(module, leaf)[leaf] = parameter
            yield
        finally:
            for module, leaf, parameter in reversed(undo):
                _held(module, leaf)[leaf] = parameter

    def _exchanges(self, twin: Twin, layer: int | None) -> list[Exchange]:
        if not twin.edits:
            return []
        if self._twin is None or self._twin() is not twin:
            base: Any = twin.base
            made: dict[int | None, list[Exchange]] = {}
            # When the twin is dropped, so are its tensors.
            self._twin, self._made = weakref.ref(twin, lambda _: made.clear()), made
            self._owners = base.owners()
        if layer not in self._made:
            self._made[layer] = list(self._exchanged(twin, layer))
        return self._made[layer]

    def _exchanged(self, twin: Twin, layer: int | None) -> Iterator[Exchange]:
        model: Any = twin.base
        layout: Layout = model.module_layout
        fresh: dict[tuple[int, str], list[Exchange]] = {}
        for name, edited in twin.overlay(layer).items():
            if layer and model.info.facts.one_layer:
                continue  # what layer 0 is
            place = model.place_to_edit(layer, name)
            if place.slot.plus and torch.equal(edited, model.tensor(layer, name)):
                continue  # what is stored cannot be had back exactly from the sum
            module, leaf = self._owners.holding[place.theirs][0]
            base = _held(module, leaf)[leaf]
            if base.is_meta:
                raise ModelError(f"{place.theirs} is not in memory (device_map): edited twins need all weights there")
            # A head tied to the embedding has two names here and one parameter there: each name is edited on its own.
            role = name if layout.tied and name in ("W_E", "W_U") else ""
            if (id(base), role) not in fresh:
                fresh_tensor = base.detach().clone()
                kept = isinstance(base, torch.nn.Parameter)
                copy = torch.nn.Parameter(fresh_tensor, requires_grad=False) if kept else fresh_tensor
                fresh[id(base), role] = [(m, leaf, copy) for m, leaf in self._owners.of(place.theirs, role)]
            self._write(twin, layer, name, layout, place, fresh[id(base), role][0][2], edited)
        for exchanges in fresh.values():
            yield from exchanges

    def _write(
        self, twin: Twin, layer: int | None, name: str, layout: Layout, place: Place, copy: Any, edited: torch.Tensor
    ) -> None:
        plus = place.slot.plus
        view = layout.write(place, copy.data, edited - plus if plus else edited)
        if view is not None and not plus:
            twin.adopt(layer, name, view)


def _held(module: torch.nn.Module, leaf: str) -> dict[str, Any]:
    """Where a module holds a tensor: among its parameters, or its buffers."""
    return module._parameters if leaf in module._parameters else module._buffers
