"""The edits: each draws the tensors of one layer anew and changes none in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gausslens import Generators, LayerWeights

from .noise import is_constant, matched, shuffled
from .tensors import present

if TYPE_CHECKING:
    import torch

    from .parameters import ConfigParameters, ReinitParameters

    Tensors = dict[str, torch.Tensor]


def from_config(weights: LayerWeights, parameters: ConfigParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """The model's own initialisation; the host seeds it by run, edit, draw, layer and tensor."""
    fresh = {name: weights.initial(name) for name in present(weights, parameters)}
    return {name: tensor for name, tensor in fresh.items() if not _same_constant(tensor, weights[name])}


def gaussian(weights: LayerWeights, parameters: ReinitParameters, generators: Generators) -> Tensors:
    """Gaussian noise of each tensor's own mean and variance."""
    return _drawn(matched, weights, parameters, generators)


def permute(weights: LayerWeights, parameters: ReinitParameters, generators: Generators) -> Tensors:
    """The entries of each tensor, shuffled over the whole tensor."""
    return _drawn(shuffled, weights, parameters, generators)


def _drawn(
    draw: Callable[[torch.Tensor, torch.Generator], torch.Tensor],
    weights: LayerWeights,
    parameters: ReinitParameters,
    generators: Generators,
) -> Tensors:
    held = {name: weights[name] for name in present(weights, parameters)}
    # All entries equal (a bias of zeros): there is nothing to draw, and a claim to have changed it would be false.
    return {name: draw(tensor, generators.torch(name)) for name, tensor in held.items() if not is_constant(tensor)}


def _same_constant(fresh: torch.Tensor, held: torch.Tensor) -> bool:
    """An initialisation that is a constant (zeros for a bias), which the tensor already has, changes nothing."""
    import torch

    return is_constant(fresh) and torch.equal(fresh.to(held.dtype), held)
