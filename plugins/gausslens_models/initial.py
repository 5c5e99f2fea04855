"""Fresh draws from a model's own initialisation, one layer at a time.

transformers marks what it has loaded as initialised, and its own functions then change nothing, in silence. So the
class is built anew from the full config (depth-scaled schemes read it) without memory, and one layer is made real.
"""

from __future__ import annotations

import copy
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from gausslens import ModelError

from .layout import Layout, family_of, make_layout
from .opening import quiet

if TYPE_CHECKING:
    import torch


class Initial:
    """The initialisation of a model class. The layer drawn last is kept: its other tensors are of the same draw."""

    def __init__(self, config: Any, model_class: Any, dtype: torch.dtype) -> None:
        import torch

        with torch.device("meta"), quiet():
            self.skeleton = model_class(copy.deepcopy(config)).to(dtype)
        shapes = {n: tuple(p.shape) for n, p in self.skeleton.named_parameters()}
        family = family_of(config, model_class.__name__)
        headed = self.skeleton.get_output_embeddings() is not None
        self.layout: Layout = make_layout(family, config, shapes, model_class.__name__, headed)
        self._drawn: tuple[tuple[int | None, int, str], dict[str, torch.Tensor]] | None = None

    def draw(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """One tensor of ours from the draw that this seed gives."""
        import torch

        place = self.layout.places[layer][name]
        owner = place.theirs.rpartition(".")[0] if layer is None else self._layer_path(layer)
        if self._drawn is None or self._drawn[0] != (layer, seed, owner):
            self._drawn = ((layer, seed, owner), self._draw(owner, seed))
        theirs = self._drawn[1][place.theirs]
        if not bool(torch.isfinite(theirs).all()):
            raise ModelError(f"{type(self.skeleton).__name__} does not initialise {place.theirs}")
        return self.layout.ours(place, theirs, theirs.dtype)

    def _layer_path(self, layer: int) -> str:
        theirs = next(iter(self.layout.places[layer].values())).theirs
        head, stack, _ = theirs.partition(f"{self.layout.family.layers}.{layer}.")
        return (head + stack).rstrip(".")

    def _draw(self, owner: str, seed: int) -> dict[str, torch.Tensor]:
        import torch

        module = copy.deepcopy(self.skeleton.get_submodule(owner)).to_empty(device="cpu")
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for parameter in module.parameters():
                parameter.fill_(torch.nan)
            # Equal seeds must not give two tensors equal numbers: the name of the module goes in.
            torch.manual_seed(int.from_bytes(sha256(f"{seed} {owner}".encode()).digest()[:7]))
            module.apply(self.skeleton._init_weights)
        return {f"{owner}.{n}": p.detach() for n, p in module.named_parameters()}
