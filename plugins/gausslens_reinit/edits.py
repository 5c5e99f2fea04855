"""The edits: each draws the tensors of one layer anew and changes none in place.

What an edit claims to keep is looked at on every tensor that it returns, on every twin: a claim that does not hold is
an error, not a null that is not what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gausslens import Generators, LayerWeights, ModelError, OpenModel
from gausslens.maths.heads import BIAS_OF, as_matrices, as_tensor

from .maths import noise
from .maths.claims import broken_claim
from .maths.shaped_matrices import at_energy, random_band, random_low_rank, random_sparse
from .maths.shaped_matrices import identity as identity_matrices
from .parameters import FACTORS, BlockParameters, ConfigParameters, touched

if TYPE_CHECKING:
    from .parameters import (
        BandParameters,
        CascadeParameters,
        FanParameters,
        GaussianParameters,
        IdentityParameters,
        RankParameters,
        ReinitParameters,
        ShapedParameters,
        SparseParameters,
    )

Tensors = dict[str, torch.Tensor]
# Of a tensor's name, the tensor and a generator.
Draw = Callable[[str, torch.Tensor, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Scheme:
    """How a matrix and how a bias is drawn, and what the drawn ones keep of those they replace."""

    matrix: Draw
    bias: Draw
    keeps: Sequence[str] = ()
    by: str = "head"


def from_config(weights: LayerWeights, parameters: ReinitParameters, generators: Generators) -> Tensors:  # noqa: ARG001
    """The model's own initialisation; the host seeds it by run, edit, draw, layer and tensor."""
    made: Tensors = {}
    for name in _to_initialise(weights, parameters):
        fresh, rows = weights.initial(name), weights.rows(name)
        held = weights[name].to(fresh)
        of_heads, axis = (fresh, held), weights.info.head_axis(name)
        if rows is not None and axis is not None:
            chosen = torch.tensor(rows, device=held.device)
            of_heads = (fresh.index_select(axis[0], chosen), held.index_select(axis[0], chosen))
        # A constant (zeros for a bias) that the tensor has already changes nothing.
        if not (noise.is_constant(fresh) and torch.equal(*of_heads)):
            made[name] = fresh
    return made


def gaussian(weights: LayerWeights, parameters: GaussianParameters, generators: Generators) -> Tensors:
    """Gaussian noise of given variance, or of each tensor's own mean and variance."""
    variance = parameters.variance
    if variance is None:
        return _drawn(weights, parameters, generators, Scheme(_matched, _matched, ("mean", "variance")))

    def draw(_name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return noise.independent(tensor.shape, variance, "normal", generator).to(tensor)

    return _drawn(weights, parameters, generators, Scheme(draw, _zeros))


def xavier(weights: LayerWeights, parameters: FanParameters, generators: Generators) -> Tensors:
    """Variance 2 / (n + m), n and m the sides of the whole matrix (Glorot and Bengio 2010); biases are zero."""
    return _fanned(weights, parameters, generators, lambda reads, writes: 2 / (reads + writes))


def he(weights: LayerWeights, parameters: FanParameters, generators: Generators) -> Tensors:
    """Variance 2 / n, n what the whole matrix reads (He et al. 2015); biases are zero."""
    return _fanned(weights, parameters, generators, lambda reads, _writes: 2 / reads)


def permute(weights: LayerWeights, parameters: ReinitParameters, generators: Generators) -> Tensors:
    """The entries of each tensor, shuffled over the whole tensor."""
    return _drawn(weights, parameters, generators, Scheme(_shuffled, _shuffled, ("values",)))


def rotate(weights: LayerWeights, parameters: BlockParameters, generators: Generators) -> Tensors:
    """Each matrix between two random rotations; a bias, a matrix of one row, turns with its length."""
    by = parameters.by

    def draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return as_tensor(name, noise.rotated(as_matrices(name, tensor, by), generator), tensor)

    return _drawn(weights, parameters, generators, Scheme(draw, draw, ("spectrum",), by))


def cascade(weights: LayerWeights, parameters: CascadeParameters, generators: Generators) -> Tensors:
    """Layers drawn anew from the top or from the bottom, so many of them."""
    layer, count = weights.layer, weights.info.n_layers
    if layer is None or (count - 1 - layer if parameters.start == "top" else layer) >= parameters.depth:
        return {}
    given = {"matrices": parameters.matrices, "biases": parameters.biases, "series": parameters.series}
    if parameters.scheme == "config":
        return from_config(weights, ConfigParameters.model_validate(given), generators)
    if parameters.scheme == "rotate":
        return rotate(weights, BlockParameters.model_validate(given), generators)
    draw, keeps = {
        "gaussian": (_matched, ("mean", "variance")),
        "permute": (_shuffled, ("values",)),
    }[parameters.scheme]
    return _drawn(weights, parameters, generators, Scheme(draw, draw, keeps))


def identity(weights: LayerWeights, parameters: IdentityParameters, generators: Generators) -> Tensors:
    """Ones on the diagonal, at the size of the matrix replaced; or the value that is given, and biases of zero."""
    value = parameters.value
    if value is not None:

        def draw(name: str, tensor: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
            held = as_matrices(name, tensor, parameters.by)
            return as_tensor(name, value * identity_matrices(held.shape), tensor)

        return _drawn(weights, parameters, generators, Scheme(draw, _zeros))
    return _shaped(weights, parameters, generators, lambda shape, _generator: identity_matrices(shape))


def diagonal(weights: LayerWeights, parameters: ShapedParameters, generators: Generators) -> Tensors:
    """Random entries on the diagonal alone."""
    return _shaped(weights, parameters, generators, lambda shape, generator: random_band(shape, 0, generator))


def band(weights: LayerWeights, parameters: BandParameters, generators: Generators) -> Tensors:
    """Random entries near the diagonal alone."""
    width = parameters.width
    return _shaped(weights, parameters, generators, lambda shape, generator: random_band(shape, width, generator))


def sparse(weights: LayerWeights, parameters: SparseParameters, generators: Generators) -> Tensors:
    """Random entries in a share of places."""
    density = parameters.density
    return _shaped(
        weights,
        parameters,
        generators,
        lambda shape, generator: random_sparse(shape, density, generator),
    )


def low_rank(weights: LayerWeights, parameters: RankParameters, generators: Generators) -> Tensors:
    """A random matrix of few directions."""
    rank = parameters.rank
    return _shaped(
        weights,
        parameters,
        generators,
        lambda shape, generator: random_low_rank(shape, rank, generator),
    )


def check_initial(model: OpenModel, parameters: ReinitParameters) -> None:
    """A difference of two models has no initialisation of its own."""
    if model.info.facts.difference and getattr(parameters, "scheme", "config") == "config":
        raise ModelError(
            f"{model.info.name} is a difference of weights, which no class of models draws: take a null that keeps "
            "something of it, as reinit.gaussian (norm), reinit.permute (entries) or reinit.rotate (singular values)"
        )


def _to_initialise(weights: LayerWeights, parameters: ReinitParameters) -> list[str]:
    """The tensors to draw anew; in place of one that is a product, its factors: those a model runs with.

    Of some heads alone no factor can be drawn that others do not share: then the product is.
    """
    products = weights.info.facts.products.get(weights.layer, {})
    names = [name for name in _present(weights, parameters) if name not in FACTORS]
    if weights.rows("W_Q") is not None:
        return names
    gains = {"ln1.w"} <= set(touched(parameters))
    parts = [part for name in names for part in products.get(name, (name,))]
    return [part for part in dict.fromkeys(parts) if gains or part not in ("ln_Q.w", "ln_KV.w")]


def _present(weights: LayerWeights, parameters: ReinitParameters) -> list[str]:
    """The tensors to draw anew that this layer has; of some heads alone, those that have heads."""
    return [name for name in touched(parameters) if weights.may_change(name)]


def _shaped(
    weights: LayerWeights,
    parameters: ShapedParameters,
    generators: Generators,
    make: Callable[[Sequence[int], torch.Generator], torch.Tensor],
) -> Tensors:
    """Matrices of a shape, at the energy of those they replace; biases are zero."""

    def draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        held = as_matrices(name, tensor, parameters.by)
        return as_tensor(name, at_energy(make(held.shape, generator), held), tensor)

    return _drawn(weights, parameters, generators, Scheme(draw, _zeros, ("energy",)))


def _fanned(
    weights: LayerWeights, parameters: FanParameters, generators: Generators, variance: Callable[[int, int], float]
) -> Tensors:
    def draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        # Of all heads, also where only some are drawn.
        _, reads, writes = as_matrices(name, weights[name], "matrix").shape
        spread = parameters.gain**2 * variance(reads, writes)
        return noise.independent(tensor.shape, spread, parameters.distribution, generator).to(tensor)

    return _drawn(weights, parameters, generators, Scheme(draw, _zeros))


def _drawn(weights: LayerWeights, parameters: ReinitParameters, generators: Generators, scheme: Scheme) -> Tensors:
    """Each tensor as the scheme draws it, or of some heads their rows alone: what is kept is kept of these.

    A bias of zeros that stays so is not claimed to be changed.
    """
    biases = set(BIAS_OF.values())
    made: Tensors = {}
    for name in _present(weights, parameters):
        whole = weights[name].contiguous()  # a loader's views are turned once, not at every look
        rows = weights.rows(name)
        held = whole if rows is None else whole[rows]
        drawn = (scheme.bias if name in biases else scheme.matrix)(name, held, generators.torch(name))
        if noise.is_constant(held) and torch.equal(drawn, held):
            continue
        # A bias that a scheme sets to zero keeps nothing.
        keeps = () if scheme.bias is _zeros and name in biases else scheme.keeps
        claim = broken_claim(name, held, drawn, keeps, scheme.by)
        if claim:
            raise ModelError(
                f"layer {weights.layer}, {name}: the draw does not keep the {claim} that it claims to keep"
            )
        made[name] = drawn if rows is None else whole.index_copy(0, torch.tensor(rows, device=whole.device), drawn)
    return made


def _matched(_name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return noise.matched(tensor, generator)


def _shuffled(_name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return noise.shuffled(tensor, generator)


def _zeros(_name: str, tensor: torch.Tensor, _generator: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(tensor)
