"""The edits: each gives the matrices of one layer other singular values or vectors, and changes none in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gausslens import Generators, LayerWeights, ModelError, OpenModel
from gausslens.maths.frames import haar
from gausslens.maths.heads import BIAS_OF, as_matrices, as_tensor
from gausslens.maths.laws import Law

from .maths import singular_values
from .maths.decomposition import Decomposed, mapped_bias
from .maths.products import PARTS, HeadProduct
from .parameters import NORM_AFTER, biases_of, factors_of

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
    """The singular values [block, value] of one matrix or product, and the law of noise of its shape."""

    name: str
    s: torch.Tensor
    noise: Law


Change = Callable[[Spectra], torch.Tensor]


def scale(weights: LayerWeights, parameters: ScaleParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Every singular value times alpha; a product's through its query-side or output-side factor."""
    alpha, made = parameters.alpha, _zeroed(weights, parameters)
    for name in _present(weights, parameters):
        matrix, _, bias = PARTS.get(name, (name, None, BIAS_OF.get(name)))
        scaled = [matrix]
        if parameters.biases == "follow" and bias is not None and weights.may_change(bias):
            scaled.append(bias)
        if parameters.norms:
            scaled += [n for n in NORM_AFTER.get(matrix, ()) if weights.may_change(n)]
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
    p, hold = parameters.p, parameters.hold
    return _with_values(weights, parameters, lambda found: singular_values.power(found.s, p, hold))


def flatten(weights: LayerWeights, parameters: FlattenParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Make the singular values more equal."""
    return _with_values(weights, parameters, lambda found: singular_values.flatten(found.s, parameters.amount))


def law(weights: LayerWeights, parameters: LawParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Put a law's quantiles in place of the singular values."""
    return _with_values(
        weights, parameters, lambda found: singular_values.quantiles(found.s, parameters.law, found.noise)
    )


def graft(weights: LayerWeights, parameters: GraftParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """Put the singular values that another layer has without edits in place of these."""
    if parameters.source not in range(weights.info.n_layers):
        raise ModelError(f"there is no layer {parameters.source} to graft from: it has {weights.info.n_layers} layers")
    source = weights.base(parameters.source)

    def change(found: Spectra) -> torch.Tensor:
        if any(n not in source for n in factors_of(found.name)):
            raise ModelError(f"layer {parameters.source} has no {found.name} to graft from")
        if found.name in PARTS:
            other = HeadProduct.of(found.name, source).core()[3].s
        else:
            other = torch.linalg.svdvals(as_matrices(found.name, source[found.name], parameters.by))
        return singular_values.grafted(found.s, other, parameters.hold)

    return _with_values(weights, parameters, change)


def check_graft(model: OpenModel, parameters: GraftParameters) -> None:  # noqa: ARG001
    """Refuse a difference of two models: what it would be given are the values of the model that is taken away."""
    if model.info.facts.difference:
        raise ModelError(
            f"{model.info.name} is a difference of weights, and layers without edits are of the model taken away: "
            "graft in a variant that is a model, and take the difference of that"
        )


def vectors(weights: LayerWeights, parameters: VectorParameters, generators: Generators) -> Tensors:
    """Put Haar-random singular vectors in place of these, and keep the values."""
    made = _zeroed(weights, parameters)
    for name in _present(weights, parameters):
        draw = generators.torch(name)
        if name in PARTS:
            made |= _product_with_vectors(weights, name, parameters.sides, draw)
            continue
        before = Decomposed.of(_matrices(weights, name, parameters))
        U = before.U if parameters.sides == "right" else haar(before.U.shape, draw)
        V = before.V if parameters.sides == "left" else haar(before.V.shape, draw)
        made |= _rebuilt(weights, name, before, Decomposed(U, before.s, V), parameters)
    return _changed(weights, made)


def _present(weights: LayerWeights, parameters: SurgeryParameters) -> list[str]:
    """The matrices and products that this layer has; of some heads alone, those that have heads."""
    return [name for name in parameters.matrices if all(weights.may_change(factor) for factor in factors_of(name))]


def _matrices(weights: LayerWeights, name: str, parameters: SurgeryParameters) -> torch.Tensor:
    """The blocks whose spectra are edited. The one of all heads cannot be edited in some of them."""
    if parameters.by == "matrix" and weights.rows(name) is not None:
        raise ModelError(f"{name} has one spectrum with by: matrix, of all heads: leave out heads, or say by: head")
    return as_matrices(name, weights[name], parameters.by)


def _with_values(weights: LayerWeights, parameters: SurgeryParameters, change: Change) -> Tensors:
    """The matrices with other singular values; those whose values stay as they are, are not made again."""
    made = _zeroed(weights, parameters)
    for name in _present(weights, parameters):
        if name in PARTS:
            made |= _product_with_values(weights, name, change, parameters)
            continue
        before = Decomposed.of(_matrices(weights, name, parameters))
        found = change(Spectra(name, before.s, before.noise))
        if not torch.equal(found, before.s):
            made |= _rebuilt(weights, name, before, Decomposed(before.U, found, before.V), parameters)
    return _changed(weights, made)


def _rebuilt(
    weights: LayerWeights, name: str, before: Decomposed, after: Decomposed, parameters: SurgeryParameters
) -> Tensors:
    made = {name: as_tensor(name, after.matrices(), weights[name])}
    bias = BIAS_OF[name]
    # b_O belongs to no head.
    of_blocks = name != "W_O" or parameters.by == "matrix"
    if parameters.biases == "follow" and bias in weights and of_blocks:
        rows = as_matrices(bias, weights[bias], parameters.by)
        made[bias] = as_tensor(bias, mapped_bias(rows, before, after), weights[bias])
    return made


def _product_with_values(weights: LayerWeights, name: str, change: Change, parameters: SurgeryParameters) -> Tensors:
    product = HeadProduct.of(name, weights)
    s = product.core()[3].s
    found = change(Spectra(name, s, product.noise))
    if torch.equal(found, s):
        return {}
    first, _, bias = PARTS[name]
    new, through = product.with_values(found)
    made = {first: product.tensor("A", new, weights[first])}
    if parameters.biases == "follow" and bias is not None and bias in weights:
        held = weights[bias]
        made[bias] = (held.cpu().double().unsqueeze(1) @ through).reshape(held.shape).to(held)
    return made


def _product_with_vectors(weights: LayerWeights, name: str, sides: str, draw: torch.Generator) -> Tensors:
    product = HeadProduct.of(name, weights)
    first, second, _ = PARTS[name]
    # The query head's factor is on the left of QK and on the right of OV.
    of_head, of_group = ("left", "right") if name == "QK" else ("right", "left")
    made = {}
    if sides in (of_head, "both"):
        made[first] = product.tensor("A", product.in_random_frame("A", draw), weights[first])
    if sides in (of_group, "both"):
        made[second] = product.tensor("B", product.in_random_frame("B", draw), weights[second])
    return made


def _zeroed(weights: LayerWeights, parameters: SurgeryParameters) -> Tensors:
    """Zeros for the biases, where they are to go."""
    if parameters.biases != "zero":
        return {}
    biases = [b for name in _present(weights, parameters) for b in biases_of(name) if weights.may_change(b)]
    return {b: torch.zeros_like(weights[b]) for b in biases}


def _changed(weights: LayerWeights, made: Tensors) -> Tensors:
    """Without what came out as it was (a bias of zeros): a claim to have changed it would be false."""
    return {name: tensor for name, tensor in made.items() if not torch.equal(tensor, weights[name])}


def _counted(s: torch.Tensor, parameters: EndParameters) -> torch.Tensor:
    return singular_values.chosen(s, singular_values.order_from(s, parameters.end), parameters.k, parameters.energy)


def _drawn(found: Spectra, parameters: ChoiceParameters, generators: Generators) -> torch.Tensor:
    order = singular_values.random_value_order(found.s, generators.torch(found.name))
    return singular_values.chosen(found.s, order, parameters.k, parameters.energy)
