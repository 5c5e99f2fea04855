"""The edits: each gives the matrices of one layer other singular values or vectors, and changes none in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gausslens import Generators, LayerWeights, ModelError

from . import values
from .blocks import BIAS_OF, Decomposed, bias_of, carried, matrices_of, tensor_of
from .frames import haar
from .products import PARTS, Product
from .touched import BIASES, NORM_AFTER, present

if TYPE_CHECKING:
    from .parameters import (
        ChoiceParameters,
        EndParameters,
        FlattenParameters,
        GraftParameters,
        LawParameters,
        PowerParameters,
        ScaleParameters,
        SurgeryParameters,
        VectorParameters,
    )

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Spectra:
    """The singular values of the blocks of one matrix or product: ``ratio`` of its sides, number of ``factors``."""

    name: str
    s: torch.Tensor
    ratio: float
    factors: int


Change = Callable[[Spectra], torch.Tensor]


def scale(weights: LayerWeights, parameters: ScaleParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Every singular value times alpha; a product's through its query-side or output-side factor."""
    alpha, made = parameters.alpha, _zeroed(weights, parameters)
    for name in present(weights, parameters):
        matrix, _, bias = PARTS.get(name, (name, None, BIAS_OF.get(name)))
        scaled = [matrix]
        if parameters.biases == "follow" and bias is not None and bias in weights:
            scaled.append(bias)
        if parameters.norms:
            scaled += [n for n in NORM_AFTER.get(matrix, ()) if n in weights]
        made |= {n: weights[n] * alpha for n in scaled}
    return _changed(weights, made)


def keep(weights: LayerWeights, parameters: EndParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Keep singular values counted from one end, drop the others."""
    return _with_values(weights, parameters, lambda found: found.s * _counted(found.s, parameters))


def drop(weights: LayerWeights, parameters: EndParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Drop singular values counted from one end, keep the others."""
    return _with_values(weights, parameters, lambda found: found.s * ~_counted(found.s, parameters))


def keep_random(weights: LayerWeights, parameters: ChoiceParameters, generators: Generators) -> Tensors:
    """Keep singular values chosen at random, drop the others."""
    return _with_values(weights, parameters, lambda found: found.s * _drawn(found, parameters, generators))


def drop_random(weights: LayerWeights, parameters: ChoiceParameters, generators: Generators) -> Tensors:
    """Drop singular values chosen at random, keep the others."""
    return _with_values(weights, parameters, lambda found: found.s * ~_drawn(found, parameters, generators))


def power(weights: LayerWeights, parameters: PowerParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Raise the singular values to a power."""
    return _with_values(weights, parameters, lambda found: values.power(found.s, parameters.p, parameters.hold))


def flatten(weights: LayerWeights, parameters: FlattenParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Make the singular values more equal."""
    return _with_values(weights, parameters, lambda found: values.flatten(found.s, parameters.amount))


def law(weights: LayerWeights, parameters: LawParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Put a law's quantiles in place of the singular values."""
    return _with_values(
        weights, parameters, lambda found: values.lawful(found.s, parameters.law, found.ratio, found.factors)
    )


def graft(weights: LayerWeights, parameters: GraftParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Put the singular values that another layer has without edits in place of these."""
    if parameters.source not in range(weights.info.n_layers):
        raise ModelError(f"there is no layer {parameters.source} to graft from: it has {weights.info.n_layers} layers")
    source = weights.base(parameters.source)

    def change(found: Spectra) -> torch.Tensor:
        if any(n not in source for n in PARTS.get(found.name, (found.name, None))[:2] if n):
            raise ModelError(f"layer {parameters.source} has no {found.name} to graft from")
        if found.name in PARTS:
            other = Product.of(found.name, source).core()[3].s
        else:
            other = torch.linalg.svdvals(matrices_of(found.name, source[found.name], parameters.by))
        return values.grafted(found.s, other, parameters.hold)

    return _with_values(weights, parameters, change)


def vectors(weights: LayerWeights, parameters: VectorParameters, generators: Generators) -> Tensors:
    """Put Haar-random singular vectors in place of these, and keep the values."""
    made = _zeroed(weights, parameters)
    for name in present(weights, parameters):
        draw = generators.torch(name)
        if name in PARTS:
            made |= _turned(weights, name, parameters.sides, draw)
            continue
        before = Decomposed.of(_matrices(weights, name, parameters))
        U = before.U if parameters.sides == "right" else haar(before.U.shape, draw)
        V = before.V if parameters.sides == "left" else haar(before.V.shape, draw)
        made |= _rebuilt(weights, name, before, Decomposed(U, before.s, V), parameters)
    return _changed(weights, made)


def _matrices(weights: LayerWeights, name: str, parameters: SurgeryParameters) -> torch.Tensor:
    """The blocks whose spectra are edited. The one of all heads cannot be edited in some of them."""
    if parameters.by == "matrix" and weights.rows(name) is not None:
        raise ModelError(f"{name} has one spectrum with by: matrix, of all heads: leave out heads, or say by: head")
    return matrices_of(name, weights[name], parameters.by)


def _with_values(weights: LayerWeights, parameters: SurgeryParameters, change: Change) -> Tensors:
    """The matrices with other singular values; those whose values stay as they are, are not made again."""
    made = _zeroed(weights, parameters)
    for name in present(weights, parameters):
        if name in PARTS:
            made |= _product_with(weights, name, change, parameters)
            continue
        before = Decomposed.of(_matrices(weights, name, parameters))
        found = change(Spectra(name, before.s, before.ratio, 1))
        if not torch.equal(found, before.s):
            made |= _rebuilt(weights, name, before, Decomposed(before.U, found, before.V), parameters)
    return _changed(weights, made)


def _rebuilt(
    weights: LayerWeights, name: str, before: Decomposed, after: Decomposed, parameters: SurgeryParameters
) -> Tensors:
    made = {name: tensor_of(name, after.matrices(), weights[name])}
    bias = bias_of(name, weights, parameters.by, len(before.s)) if parameters.biases == "follow" else None
    if bias is not None:
        held = weights[BIAS_OF[name]]
        made[BIAS_OF[name]] = carried(bias, before, after).reshape(held.shape).to(held)
    return made


def _product_with(weights: LayerWeights, name: str, change: Change, parameters: SurgeryParameters) -> Tensors:
    product = Product.of(name, weights)
    s = product.core()[3].s
    found = change(Spectra(name, s, product.A.shape[2] / product.A.shape[1], 2))
    if torch.equal(found, s):
        return {}
    first, _, bias = PARTS[name]
    new, through = product.with_values(found)
    made = {first: product.tensor("A", new, weights[first])}
    if parameters.biases == "follow" and bias is not None and bias in weights:
        held = weights[bias]
        made[bias] = (held.cpu().double().unsqueeze(1) @ through).reshape(held.shape).to(held)
    return made


def _turned(weights: LayerWeights, name: str, sides: str, draw: torch.Generator) -> Tensors:
    product = Product.of(name, weights)
    first, second, _ = PARTS[name]
    # The query head's factor is on the left of QK and on the right of OV.
    of_head, of_group = ("left", "right") if name == "QK" else ("right", "left")
    made = {}
    if sides in (of_head, "both"):
        made[first] = product.tensor("A", product.turned("A", draw), weights[first])
    if sides in (of_group, "both"):
        made[second] = product.tensor("B", product.turned("B", draw), weights[second])
    return made


def _zeroed(weights: LayerWeights, parameters: SurgeryParameters) -> Tensors:
    """Zeros for the biases, where they are to go."""
    if parameters.biases != "zero":
        return {}
    biases = [b for name in present(weights, parameters) for b in BIASES[name] if b in weights]
    return {b: torch.zeros_like(weights[b]) for b in biases}


def _changed(weights: LayerWeights, made: Tensors) -> Tensors:
    """Without what came out as it was (a bias of zeros): a claim to have changed it would be false."""
    return {name: tensor for name, tensor in made.items() if not torch.equal(tensor, weights[name])}


def _counted(s: torch.Tensor, parameters: EndParameters) -> torch.Tensor:
    return values.chosen(s, values.counted(s, parameters.end), parameters.k, parameters.energy)


def _drawn(found: Spectra, parameters: ChoiceParameters, generators: Generators) -> torch.Tensor:
    order = values.shuffled(found.s, generators.torch(found.name))
    return values.chosen(found.s, order, parameters.k, parameters.energy)
